#!/usr/bin/env bash
# peers_test.sh PYTHON PEERS: what peers.py cannot use is told in one line, with status 2 or 3 and no traceback.
set -u
python=$1
peers=$2
failed=0

# expect STATUS PATTERN ARGUMENTS...
expect() {
  local status=$1 pattern=$2 output actual
  shift 2
  output=$("$python" "$peers" --bench true "$@" 2>&1)
  actual=$?
  output=$(grep -v '^usage:\|^ ' <<<"$output")
  if [[ $actual -ne $status || $(wc -l <<<"$output") -ne 1 ]] || ! grep -q -- "$pattern" <<<"$output"; then
    echo "peers.py $*: status $actual instead of $status, or not the one line '$pattern': $output"
    failed=1
  fi
}

expect 2 '--venv DIR or --python INTERPRETER'
expect 2 'no such program is no program' --python 'no such program'
expect 2 '--report' --python "$python" --report /dev/null/report.json
expect 3 '^peers.py: --venv /dev/null: ' --venv /dev/null
expect 3 '^peers.py: --venv /dev/null/below: ' --venv /dev/null/below
expect 3 'true is no Python interpreter' --python true
expect 3 'under false failed' --python false
exit "$failed"
