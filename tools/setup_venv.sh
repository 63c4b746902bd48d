#!/usr/bin/env bash
# Build .venv (or $VENV) from the pinned versions. On Debian as root it installs what venv needs.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv}
fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    fail "$python is missing or older than 3.11; install Python 3.11 or newer, or name one: PYTHON=/path/to/python3 make setup"
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian ships venv's pip as a package of its own, one for each Python.
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing $package"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
    else
        fail "Python's venv module is not installed; run: sudo apt-get install $package"
    fi
fi

# An environment holds for one Python only: another one finds none of what was installed in it.
lib=$("$python" -c 'import sys; print("lib/python%d.%d" % sys.version_info[:2])')
if [ ! -x "$venv/bin/python" ] || [ ! -d "$venv/$lib" ]; then
    echo "setup: building $venv (about a minute)"
    "$python" -m venv --clear "$venv"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
    --requirement requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
