#!/usr/bin/env bash
# Makes a virtual environment with this checkout in it, editable, and every tool.
#
#   tools/set_up.sh PYTHON VENV
#
# On Debian, the module that makes virtual environments is a package of its own. As root
# it is installed; otherwise one line says what is missing.
set -euo pipefail

python=$1
venv=$2

stop() {
    echo "set-up: $1" >&2
    exit 2
}

command -v "$python" >/dev/null || stop "$python is not installed: apt-get install python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "$("$python" --version) is too old: pdgate needs 3.11 or newer (make PYTHON=python3.x)"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="python3-venv"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        stop "$python cannot make virtual environments: apt-get install $package"
    fi
    echo "set-up: installing $package"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
fi

# A virtual environment that was moved or interrupted has no working pip: it is made anew.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "set-up: making $venv"
    "$python" -m venv --clear "$venv"
fi
echo "set-up: installing pdgate and its tools into $venv"
# --group needs pip 25.1.
"$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
"$venv/bin/python" -m pip install --quiet --editable '.[demo]' --group dev
