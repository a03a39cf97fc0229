#!/usr/bin/env bash
# parallel_tests.sh PYTHON [PYTEST ARGUMENT...]: pytest in several processes at once.
#
# They take the files of tests from one queue, the longest first (tests/file_queue.py). Each is alone
# on a loopback of its own (isolated.sh), so that none takes another's ports. Most tests wait for
# what they have started, two seconds for each that they compute, so there are three for each core, if
# there is a gigabyte for each.
# A test that takes ten minutes hangs: it says where all of its threads are, and the run ends (by a thread, as uvloop hears no
# signal while it waits). The slowest takes four on a busy machine.
# Where there are no network namespaces, one process runs all tests. PDGATE_TEST_PROCESSES says how
# many it shall be.
set -euo pipefail

python=$(realpath --no-symlinks "$(command -v "$1")")
shift
tools=$(dirname "$(realpath "$0")")

# Tests start some hundred processes: each would compile what it imports, and nothing keep it.
unset PYTHONDONTWRITEBYTECODE

# Each comes to 0.7 GB, and what it starts takes memory, too.
by_memory=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024) }' /proc/meminfo)
by_cores=$(($(nproc) * 3))
processes=${PDGATE_TEST_PROCESSES:-$((by_memory < by_cores ? (by_memory > 0 ? by_memory : 1) : by_cores))}
if ! bash "$tools/isolated.sh" sh -c '[ -n "${PDGATE_LOOPBACK_ONLY:-}" ]'; then
    processes=1
fi
exec "$python" -m pytest --dist loadfile --no-loadscope-reorder \
    --tx "$processes*popen//python=bash $tools/isolated.sh $python" \
    --timeout 600 --timeout-method thread "$@"
