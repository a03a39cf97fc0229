#!/usr/bin/env bash
# kv_transfer.sh [ROUNDS]: measures KV transfer and rewrites its tables in RESULTS.md and the picture.
#
# Three minutes for 9 rounds. For figures worth keeping, on a machine that does nothing else.
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
rounds=${1:-9}
bash tools/isolated.sh "$python" -m benchmarks.transfer --rounds "$rounds" \
    --json benchmarks/transfer.json --results benchmarks/RESULTS.md
"$python" -m benchmarks.overlap --rounds "$rounds" \
    --picture benchmarks/overlap.svg --results benchmarks/RESULTS.md
