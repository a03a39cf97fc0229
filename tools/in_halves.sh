#!/usr/bin/env bash
# in_halves.sh PYTHON: every test but those on real vLLM, in two processes at once.
#
# Most tests wait for processes that they have started, so a second core would be idle. Each half is
# alone on a loopback of its own (isolated.sh), so neither can take the other's ports.
set -uo pipefail

python=$1
# Those that start most processes; the other half is all the rest, whatever it is.
first=(tests/benchmarks tests/chaos tests/cluster tests/deploy tests/docs tests/end_to_end tests/operations)
rest=("${first[@]/#/--ignore=}")

half() {
    bash tools/isolated.sh "$python" -m pytest --ignore tests/end_to_end/vllm --durations 15 "$@"
}

said=$(mktemp)
trap 'rm -f "$said"' EXIT
half "${rest[@]}" >"$said" 2>&1 &
other=$!
trap 'kill "$other" 2>/dev/null; rm -f "$said"; exit 130' INT TERM
half "${first[@]}"
one=$?
wait "$other"
two=$?
cat "$said"
if [ "$one" != 0 ] || [ "$two" != 0 ]; then
    echo "of the two halves one ended with $one, the other with $two" >&2
    exit 1
fi
