#!/usr/bin/env bash
# Run `make test` on each Python named (3.11 3.12 ...) that is on the PATH, each in a .venv-X.Y of
# its own; say at the end which passed, failed and were not found. Fails if one failed or none ran.
set -uo pipefail
cd "$(dirname "$0")/.."

passed='' failed='' missing=''
for version in "$@"; do
    # Asked to run, not looked up: a version manager's stand-in is on the PATH and refuses.
    if ! "python$version" -c '' 2>/dev/null; then
        missing+=" $version"
    elif "${MAKE:-make}" test PYTHON="python$version" VENV=".venv-$version"; then
        passed+=" $version"
    else
        failed+=" $version"
    fi
done

printf 'pythons: passed:%s; failed:%s; not found on the PATH:%s\n' \
    "${passed:- none}" "${failed:- none}" "${missing:- none}"
[ -n "$passed" ] && [ -z "$failed" ]
