# What scripts that install have in common, to be sourced.

stop() {
    echo "set-up: $1" >&2
    exit 2
}

apt_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "set-up: installing $1"
    apt-get update -qq
    # Tests start what they need by themselves: no package is to leave a daemon running.
    local policy=/usr/sbin/policy-rc.d made='' status=0
    if [ ! -e "$policy" ]; then
        made=yes
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null ||
        status=$?
    [ -z "$made" ] || rm -f "$policy"
    return "$status"
}
