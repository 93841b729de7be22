#!/usr/bin/env bash
# arguments_test.sh PROGRAM: wrong arguments give status 2; without a GPU every command says so and gives 3.
set -u
program=$1
failed=0

# expect STATUS PATTERN ARGUMENTS...
expect() {
  local status=$1 pattern=$2 output actual
  shift 2
  output=$("$program" "$@" 2>&1)
  actual=$?
  if [[ $actual -ne $status ]] || ! grep -qi -- "$pattern" <<<"$output"; then
    echo "qattn-gpu $*: status $actual instead of $status, or no '$pattern' in: $output"
    failed=1
  fi
}

expect 0 'record' --help
expect 0 'seconds' check --help
expect 2 'subcommand'
expect 2 'out' record
expect 2 'seconds' check --seconds -1
expect 2 'threads' check --threads 1000000000
expect 2 'only' probe --only '('
expect 2 'nonsense' list --nonsense
expect 2 'smoothquant-int8.*balance_alpha' check --operands --recipe smoothquant-int8 --set balance_alpha=0.3
expect 2 'v_granularity' check --operands --recipe sage2-8b --set v_granularity=1x32
expect 2 'scale_rule' check --operands --recipe sage2-8b --set k_scale_rule=e8m0_ceil
expect 2 'heads' check --operands --heads 3:1
expect 2 'blocks' record --blocks 3 /dev/null
expect 2 'output' run a.h5 --recipe sage2-8b
expect 2 'one DUMP and one --recipe' run --recipe sage2-8b --output /dev/null
expect 2 'give both or neither' check a.h5
expect 2 'give both or neither' check --recipe sage2-8b
expect 2 'heads' check a.h5 --recipe sage2-8b --heads 3:2
expect 2 'a --recipe NAME for each' record --attention b.h5
if "$program" list 2>&1 | grep -q 'no CUDA device'; then
  for command in 'record /dev/null' 'record --digests /dev/null' 'record --scalar /dev/null' 'check' 'check --scalar' \
    'check --operands' 'probe' 'list' 'check a.h5 --recipe sage2-8b' 'run a.h5 --recipe sage2-8b --output b.h5' \
    'record --attention b.h5 a.h5 --recipe sage2-8b'; do
    # shellcheck disable=SC2086
    expect 3 'no CUDA device' $command
  done
else
  expect 2 'no instruction' list --only 'no such name'
fi
exit "$failed"
