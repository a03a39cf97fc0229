#!/usr/bin/env bash
# Adds every tool and server that tests need to the virtual environment of tools/virtual_env.sh.
#
#   tools/set_up.sh VENV
#
# On Debian, the library that Mooncake is linked to is a package of its own. As root it is
# installed; otherwise one line says what is missing: then its tests are skipped, and with CI=true this fails.
set -euo pipefail
source "$(dirname "$0")/apt.sh"

venv=$1

left_out() {
    if [ "${CI:-}" = true ]; then stop "$1"; fi
    echo "set-up: $1; its tests are skipped" >&2
}

echo "set-up: installing the tools and what tests need into $venv"
# --group needs pip 25.1.
"$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'
PDGATE_COMPILE=0 "$venv/bin/python" -m pip install --quiet --editable '.[demo]' --group dev

bash "$(dirname "$0")/transfer_libraries.sh" "$venv/bin/python"
if ! "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null; then
    apt_install libibverbs1 || left_out "Mooncake needs libibverbs: apt-get install libibverbs1"
fi
# The directory of engines is tested with a real one.
if ! command -v etcd >/dev/null; then
    apt_install etcd-server || left_out "no etcd is installed: apt-get install etcd-server"
fi
# And the prefill queue with a real Redis.
if ! command -v redis-server >/dev/null; then
    apt_install redis-server || left_out "no Redis is installed: apt-get install redis-server"
fi
# Dashboards and alerts are tried out in a real Prometheus, whose package has promtool, too.
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
    apt_install prometheus || left_out "no Prometheus is installed: apt-get install prometheus"
fi
# What calls cost is guarded by counting instructions.
if ! command -v valgrind >/dev/null; then
    apt_install valgrind || left_out "no valgrind is installed: apt-get install valgrind"
fi
# The console is tested in a browser (380 MB, half a minute).
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    apt_install chromium-driver ||
        left_out "no Chromium is installed: apt-get install chromium-driver"
fi
# deploy/ is rendered with the programs that users have.
"$venv/bin/python" tools/kubectl_and_helm.py "$venv/bin" ||
    left_out "kubectl and helm could not be had"
