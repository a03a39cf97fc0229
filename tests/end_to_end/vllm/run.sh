#!/usr/bin/env bash
# run.sh [PYTEST ARGUMENT...]: the gateway over stock vLLM 0.32 on the CPU, NIXL and Mooncake; and what of our own
# engine needs the PyTorch that comes with it (tests/engine/tensors). Without arguments all of these tests are run;
# with some, what these say.
#
#   PYTHON          the Python that has pdgate and its test tools        (default: python3)
#   PDGATE_CACHE    where vLLM is kept between runs, about 4 GB          (default: ~/.cache/pdgate)
#   CI=true         what cannot be tested is a failure, not a skip
#
# Everything runs in network namespaces that have nothing but loopback, because Mooncake listens
# on every interface. That takes root, or a kernel that lets users have namespaces. A process for each core (four at most) takes
# the tests of one fleet of engines after those of another from a queue (tests/file_queue.py): what one waits for
# (a lease to end, a frozen engine to be given up) is the other's time to start engines.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
cd "$here/../../.."
python=$(command -v "${PYTHON:-python3}")
cache=${PDGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pdgate}

# What is built depends on the recipe, the model's source, and the Python that builds it.
recipe=$({ cat "$here"/{install.sh,constraints.txt,make_model.py}; "$python" -VV; } | sha256sum)
built="$cache/vllm-${recipe:0:12}"
mkdir -p "$built"

# A virtual environment cannot be moved into place, so a stamp says that it is whole, and a lock
# keeps a second run from using or building half of one.
exec 9> "$built/lock"
flock 9
if [ ! -e "$built/complete" ]; then
    rm -rf "$built/venv" "$built/model"
    echo "installing vLLM into $built (minutes, about 4 GB)"
    if ! PYTHON=$python "$here/install.sh" "$built/venv" > "$built/install.log" 2>&1; then
        tail -n 40 "$built/install.log" >&2
        exit 1
    fi
    "$python" "$here/make_model.py" "$built/model"
    touch "$built/complete"
fi
flock --unlock 9
exec 9>&-

PDGATE_VLLM_LOGS=$(mktemp -d -t pdgate-e2e-vllm-XXXXXX)
export PDGATE_VLLM_VENV="$built/venv" PDGATE_VLLM_MODEL="$built/model" PDGATE_VLLM_LOGS
echo "logs of the engines and the gateways: $PDGATE_VLLM_LOGS"

# A process namespace as well: whatever ends this, even SIGKILL, nothing of it stays behind.
isolate=(unshare --net --pid --fork --kill-child --mount-proc)
if [ "$(id -u)" != 0 ]; then
    isolate+=(--user --map-root-user)
fi
if "${isolate[@]}" ip link set lo up; then
    export PDGATE_LOOPBACK_ONLY=1
    # Without exec: as the first process of its namespace, the shell buries orphans.
    run=("${isolate[@]}" -- bash -c 'ip link set lo up && "$@"; exit $?' _)
else
    echo "no network namespace here (it takes root, or user namespaces): Mooncake is left out" >&2
    if [ "${CI:-}" = true ]; then
        exit 1
    fi
    run=(env)
fi

[ "$#" != 0 ] || set -- "$here" tests/engine/tensors
cores=$(nproc)
export PDGATE_TEST_PROCESSES=${PDGATE_TEST_PROCESSES:-$((cores < 4 ? cores : 4))}
exec "${run[@]}" bash tools/parallel_tests.sh "$python" -p no:cacheprovider --durations 15 "$@"
