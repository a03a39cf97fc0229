#!/usr/bin/env bash
# wheel_env.sh PYTHON FOLDER: FOLDER/dist with the wheel that this Python builds, and FOLDER/venv with it and
# with what its tests need, the dependency group GROUP (`test`). PDGATE_COMPILE says whether it is compiled (hatch_build.py).
#
# uv does it in seconds, from what it has kept of the last time. It does not read pip's configuration,
# so where only pip knows where packages come from, pip does it.
set -euo pipefail

python=$1
folder=$(realpath -m "$2")
uv=${UV:-uv}
group=${GROUP:-test}
bin="$folder/venv/bin"

by_uv() {
    "$uv" venv --quiet --python "$python" "$folder/venv" &&
        "$uv" build --quiet --out-dir "$folder/dist" --python "$python" &&
        "$uv" pip install --quiet --python "$bin/python" --group "$group" "$(wheel)"
}

by_pip() {
    "$python" -m venv --clear "$folder/venv"
    "$bin/python" -m pip install --quiet --upgrade 'pip>=25.1' build
    "$bin/python" -m build --outdir "$folder/dist"
    "$bin/python" -m pip install --quiet --group "$group" "$(wheel)"
}

wheel() { echo "pdgate[demo] @ file://$(echo "$folder"/dist/*.whl)"; }

rm -rf "$folder"
if ! by_uv; then
    echo "uv could not: pip does it" >&2
    rm -rf "$folder"
    by_pip
fi
"$bin/python" tools/wheel_tag.py "$folder"/dist/*.whl
