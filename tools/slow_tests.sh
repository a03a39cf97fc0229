#!/usr/bin/env bash
# slow_tests.sh PYTHON [PYTEST ARGUMENT...]: the tests that `make test` leaves out: fleets of real processes, floods, faults.
set -euo pipefail

python=$1
shift

# Two of them are run by clients with environments of their own, which are fetched: tests run where there is no network.
"$python" -m tests.end_to_end.openai_sdk.suite
"$python" -m tests.end_to_end.clients.environment
exec bash "$(dirname "$0")/parallel_tests.sh" "$python" -m slow --ignore tests/end_to_end/vllm "$@"
