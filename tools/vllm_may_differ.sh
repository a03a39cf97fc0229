#!/usr/bin/env bash
# vllm_may_differ.sh: whether anything that the tests on real vLLM show may differ from what has landed.
#
#   PDGATE_LANDED   the commit that has landed already      (default: origin/main)
#
# 0 as well where git cannot tell: there is no such commit, the history was cut off before it, or
# this commit is the landed one, which says nothing of what landed with it.
set -euo pipefail

# What these tests prove, and what they are run with.
shown=(
    cluster/queue engine forwarders gateway/kv_events gateway/liveness gateway/probe.py gateway/upstream
    gateway/verification lab/conformance lab/processes.py operations/doctor protocols transfer
    tests/end_to_end/vllm tools/isolated.sh pyproject.toml Makefile .ci
)

landed=$(git merge-base HEAD "${PDGATE_LANDED:-origin/main}" 2>/dev/null) || exit 0
[ "$landed" != "$(git rev-parse HEAD)" ] || exit 0
changed=$(git diff --name-only "$landed" -- "${shown[@]}")
new=$(git ls-files --others --exclude-standard -- "${shown[@]}")
[ -n "$changed$new" ]
