#!/usr/bin/env bash
# isolated.sh COMMAND [ARGUMENT...]: runs it where there is no network but loopback.
#
# Mooncake listens on every interface, whatever it is told, so what uses it is run here. It
# takes root, or a kernel that lets users have namespaces; without, the command runs all the
# same, and the tests that need this are skipped with the reason. With CI=true they fail.
set -euo pipefail

isolate=(unshare --net)
if [ "$(id -u)" != 0 ]; then
    isolate+=(--user --map-root-user)
fi
if "${isolate[@]}" ip link set lo up; then
    export PDGATE_LOOPBACK_ONLY=1
    exec "${isolate[@]}" -- bash -c 'ip link set lo up && exec "$@"' _ "$@"
fi
echo "no network namespace here (it takes root, or user namespaces): Mooncake is left out" >&2
exec "$@"
