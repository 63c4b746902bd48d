#!/usr/bin/env bash
# Build .venv from the pinned versions. On Debian as root it installs what venv itself needs.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    fail "$python is missing or older than 3.11; install Python 3.11 or name one: make setup PYTHON=/path/to/python3.11"
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian ships venv's pip as a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing python3-venv"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    else
        fail "Python's venv module is not installed; run: sudo apt-get install python3-venv"
    fi
fi

echo "setup: building .venv (about a minute the first time)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
