#!/usr/bin/env bash
# Makes a virtual environment with this checkout in it, editable, and what `make demo` needs.
#
#   tools/virtual_env.sh PYTHON VENV
#
# On Debian, the module that makes virtual environments is a package of its own: as root it is
# installed, otherwise one line says that it is missing.
set -euo pipefail
source "$(dirname "$0")/apt.sh"

python=$1
venv=$2

command -v "$python" >/dev/null || stop "$python is not installed: apt-get install python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "$("$python" --version) is too old: pdgate needs 3.11 or newer (make PYTHON=python3.x)"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    apt_install python3-venv ||
        stop "$python cannot make virtual environments: apt-get install python3-venv"
fi

# A virtual environment that was moved or interrupted has no working pip: it is made anew.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "set-up: making $venv"
    "$python" -m venv --clear "$venv"
fi
echo "set-up: installing pdgate into $venv"
# --no-compile: Python does it for the modules that are used, a fifth of them (53 MB less).
PDGATE_COMPILE=0 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[demo]'
