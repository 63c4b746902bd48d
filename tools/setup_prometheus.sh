#!/usr/bin/env bash
# The demo and the tests ask a real Prometheus: Debian's package, installed here if we may.
set -euo pipefail

command -v prometheus >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing Debian's prometheus"
    apt-get update -qq
    # Only the program is wanted, not a service on its default port.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
else
    printf 'setup: prometheus is not on the PATH; run: sudo apt-get install prometheus\n' >&2
    exit 1
fi
