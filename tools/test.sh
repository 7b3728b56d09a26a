#!/usr/bin/env bash
# tools/test.sh PYTHON [ARGUMENTS OF PYTEST]: all tests, in several processes. Those that share the
# one Spark session share one of these, and what they say is shown when the others are done.
set -uo pipefail
python="$1"
shift

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
"$python" -m pytest --spark only "$@" >"$log" 2>&1 &
spark=$!
"$python" -m pytest -n 4 --dist worksteal --spark without "$@"
others=$?
wait "$spark"
with_spark=$?
echo
echo "With one Spark session:"
cat "$log"

# 5: the arguments choose none of these tests.
((others == 0 || others == 5)) && ((with_spark == 0 || with_spark == 5))
