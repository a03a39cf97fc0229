#!/usr/bin/env bash
# vllm_tests.sh: names the tests on real vLLM that may say something else than they did of what has landed.
#
#   PDGATE_LANDED   the commit that has landed already      (default: origin/main)
#
# Nothing, where no test shows what has changed. All, where what carries calls and KV has changed; before a
# release (this commit has a tag v*); and where git cannot tell: there is no such commit, or the history was cut
# off before it. If this commit is the landed one, the change is what landed last, its difference to its first parent.
set -euo pipefail

tests=tests/end_to_end/vllm
# Not vLLM's, but PyTorch's, which they find in the same environment.
tensors=tests/engine/tensors

# What every call to an engine, and KV on its way between two, goes through.
carries=(
    cluster/queue engine/connector.py engine/hand_over engine/layout.py engine/leases.py engine/prefill_worker
    engine/vllm forwarders gateway/upstream lab/processes.py protocols transfer tools/isolated.sh
)

# What one file of tests shows, and that file.
shown=(
    "engine $tests/test_reference_engine.py"
    "engine $tensors"
    "$tensors $tensors"
    "gateway/kv_events $tests/test_kv_events.py"
    "cluster/kv_events $tests/test_kv_events.py"
    "gateway/liveness $tests/test_frozen.py"
    "gateway/probe.py $tests/test_frozen.py"
    "gateway/verification $tests/test_verification.py"
    "lab/conformance $tests/test_conformance.py"
    "operations/doctor $tests/test_doctor.py"
)

all() {
    printf '%s\n' "$tests" "$tensors"
    exit
}

landed=$(git merge-base HEAD "${PDGATE_LANDED:-origin/main}" 2>/dev/null) || all
[ "$landed" != "$(git rev-parse HEAD)" ] || landed=$(git rev-parse --quiet --verify HEAD^1) || all
[ -z "$(git tag --points-at HEAD 'v*')" ] || all

changed() {
    git diff --name-only "$landed" -- "$@"
    git ls-files --others --exclude-standard -- "$@"
}

[ -z "$(changed "${carries[@]}" "$tests" ":!$tests/test_*.py")" ] || all
{
    changed "$tests"
    for row in "${shown[@]}"; do
        [ -z "$(changed "${row%% *}")" ] || echo "${row##* }"
    done
} | sort -u | while read -r file; do [ ! -e "$file" ] || echo "$file"; done
