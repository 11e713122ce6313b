#!/bin/sh
# keep_messages.sh FILE COMMAND [ARGUMENT ...] - runs a compiler, and keeps what it says in FILE, too.
set -eu
messages=$1
shift
status=0
"$@" >"$messages" 2>&1 || status=$?
cat "$messages" >&2
exit "$status"
