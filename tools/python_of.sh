#!/usr/bin/env bash
# python_of.sh VERSION: prints the path of a Python of that minor version (3.13).
#
# One on the PATH that really runs, one that pyenv has, or one that uv has or can fetch (that takes
# the internet: github.com, or what UV_PYTHON_INSTALL_MIRROR names).
set -euo pipefail

version=$1

says() { [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; }

candidates=("python$version")
if command -v pyenv >/dev/null; then
    # A shim on the PATH runs only the versions that are chosen in this folder.
    candidates+=("$(pyenv root)"/versions/"$version"*/bin/python)
fi
for candidate in "${candidates[@]}"; do
    if says "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done
uv=${UV:-uv}
if command -v "$uv" >/dev/null && "$uv" python install --quiet "$version" >&2; then
    exec "$uv" python find --quiet --managed-python "$version"
fi
echo "no Python $version: install it (apt, pyenv, or uv python install $version)" >&2
exit 1
