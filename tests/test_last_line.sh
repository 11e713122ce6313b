#!/usr/bin/env bash
# .ci/run must end with `N passed, M failed` and a bad status even when nothing could be built.
set -euo pipefail
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r "$1/.ci" "$1/scripts" "$tree"
echo "this is no build file" >"$tree/meson.build"
# There are the packages of the end-to-end tests, too: what fetches them would outlive the run.
# shellcheck source=scripts/ci/common.sh
. "$1/scripts/ci/common.sh"
mkdir -p "$tree/build/venv"
echo "${PYTHON_PACKAGES[*]}" >"$tree/build/venv/packages"
status=0
"$tree/.ci/run" >"$tree/out" 2>"$tree/log" || status=$?
last=$(tail -n 1 "$tree/out")
if [ "$status" -eq 0 ] || [ "$last" != "0 passed, 2 failed" ]; then
    echo "status $status, last line '$last'" >&2
    cat "$tree/log" >&2
    exit 1
fi
