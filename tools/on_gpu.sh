#!/usr/bin/env bash
# on_gpu.sh [TABLE]: the device tests, those of our engine on tensors, and benchmarks.device on this machine's GPU; writes the table.
# PDGATE_FETCH=FOLDER on_gpu.sh: where there is a network, fetches what the GPU's machine may lack.
#
# Needs Linux, Python 3.12, NVIDIA's driver, and no network; 8 minutes at most. With PyTorch there,
# compute is matrix products; without, copies, and the engine's tests are left out. Of the wheels (cp312, in PDGATE_WHEELS or build/on_gpu/wheels)
# only those are used that are not installed. NIXL and Mooncake are left out: their wheels for CUDA
# are larger than what may be brought along.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(msgspec mypy-extensions numpy pytest pytest-asyncio hypothesis hatchling editables)
# What the engine takes besides, at its start as a process.
engine_packages=(fastapi jinja2 prometheus-client pyzmq safetensors tokenizers typer uvicorn uvloop)
work=build/on_gpu
limit=${PDGATE_ON_GPU_SECONDS:-450}

if [ -n "${PDGATE_FETCH:-}" ]; then
    mkdir -p "$PDGATE_FETCH"
    python3 -m pip download --quiet --only-binary=:all: --python-version 3.12 --implementation cp \
        --abi cp312 --abi abi3 --abi none --platform manylinux2014_x86_64 --dest "$PDGATE_FETCH" "${packages[@]}" "${engine_packages[@]}"
    du -sh "$PDGATE_FETCH"
    exit
fi

table=${1:-$work/device.md}
wheels=${PDGATE_WHEELS:-$work/wheels}
python=${PYTHON:-python3}
mkdir -p "$work" "$(dirname "$table")"

# "fake:0" shows, anywhere, that this script works.
export PDGATE_TEST_DEVICE=${PDGATE_TEST_DEVICE:-cuda:0}
size=()
if [[ $PDGATE_TEST_DEVICE == fake* ]]; then
    size=(--smoke)
elif ! "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
    echo "no NVIDIA driver here (libcuda.so.1): nothing was run" >&2
    exit 1
fi
"$python" -m venv --system-site-packages "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --no-index --find-links "$wheels" "${packages[@]}"
"$work/venv/bin/python" -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .

# First of all what all the rest hangs on: whether one process may open another's memory here.
status=0
timeout "$((limit / 3))" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider \
    tests/transfer/device/test_two_processes.py tests/transfer/device/test_device.py || status=$?
if "$work/venv/bin/python" -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
    "$work/venv/bin/python" -m pip install --quiet --no-index --find-links "$wheels" "${engine_packages[@]}"
    timeout "$((limit / 3))" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests/engine/tensors || status=$?
else
    echo "no PyTorch that sees a GPU here: tests/engine/tensors were not run" >&2
fi
timeout "$((limit / 3))" "$work/venv/bin/python" -m benchmarks.device \
    --device "$PDGATE_TEST_DEVICE" "${size[@]}" --table "$table" || status=$?
exit "$status"
