#!/usr/bin/env bash
# compiled_tests.sh PYTHON FOLDER [PYTEST ARGUMENT...]: builds the wheel whose hot path is compiled with that Python, and
# runs on it
#
#   the quick tests of what is compiled, and of plugins, in a folder without the source
#   the slow ones, which `make test` leaves out (slow_tests.sh), in this checkout
#
# As an install does it that is not told to: where it cannot compile, it warns, and the look for a .so fails.
set -euo pipefail

python=$1
folder=$(realpath -m "$2")
shift 2
tools=$(dirname "$(realpath "$0")")
bin="$folder/venv/bin"

GROUP=dev bash "$tools/wheel_env.sh" "$python" "$folder"
"$bin/python" -c 'import pdgate.gateway.service as s; assert s.__file__.endswith(".so"), s.__file__'

cp -r tests docs pyproject.toml "$folder"
cd "$folder"
bash "$tools/parallel_tests.sh" "$bin/python" -m "not slow and not source" \
    tests/forwarders tests/gateway tests/protocols tests/scheduling
# Plugins are interpreted, and inherit from what is compiled.
"$bin/python" -m pytest tests/docs/test_add_a_policy.py tests/docs/test_add_a_forwarder.py
cd "$tools/.."
bash "$tools/transfer_libraries.sh" "$bin/python"
exec bash "$tools/slow_tests.sh" "$bin/python" "$@"
