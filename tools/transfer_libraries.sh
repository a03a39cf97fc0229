#!/usr/bin/env bash
# transfer_libraries.sh PYTHON: installs what the transfer backends are tested with (115 MB), without what these
# packages ask for: it is torch and a web framework, and the parts that pdgate uses need neither.
#
# They have no wheel for some Pythons: then their tests are skipped, and with CI=true this fails.
set -euo pipefail

for library in nixl-cu12==1.5.1 mooncake-transfer-engine-non-cuda==0.3.13.post1; do
    # uv makes environments without pip.
    if "$1" -m pip --version >/dev/null 2>&1; then
        install=("$1" -m pip install)
    else
        install=("${UV:-uv}" pip install --python "$1")
    fi
    "${install[@]}" --quiet --no-deps --only-binary :all: "$library" || {
        echo "set-up: $library could not be installed; its tests are skipped" >&2
        [ "${CI:-}" != true ] || exit 1
    }
done
