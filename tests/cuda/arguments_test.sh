#!/usr/bin/env bash
# arguments_test.sh PROGRAM DUMPS: wrong arguments give status 2, unreadable files 3, whether there is a GPU or not;
# without a GPU every command then says so and gives 3.
set -u
program=$1
dump=$2/kwt1_qkv.h5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
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
expect 2 'one DUMP and one --recipe' run "$dump" --recipe sage2-8b --recipe fa3-fp8 --output /dev/null
expect 2 'DUMP: .*1' run "$dump" b.h5 --recipe sage2-8b --output /dev/null
expect 2 'give both or neither' check a.h5
expect 2 'give both or neither' check --recipe sage2-8b
expect 2 'heads' check a.h5 --recipe sage2-8b --heads 3:2
expect 2 'a --recipe NAME for each' record --attention b.h5

# What would be ignored is refused, with what the command takes then.
expect 2 'check DUMP --recipe: --seconds has no part in it; it takes .*--prepare-on-cpu' \
  check "$dump" --recipe sage2-8b --seconds 1
for option in '--mismatches m.h5' '--only x' '--scalar' '--digests d.h5' '--seed 3' '--variants 3'; do
  # shellcheck disable=SC2086
  expect 2 "${option%% *} has no part" check "$dump" --recipe sage2-8b $option
done
expect 2 'prepare-on-cpu has no part' check --prepare-on-cpu
expect 2 'prepare-on-cpu has no part' check --operands --prepare-on-cpu
expect 2 'calls has no part' check --operands --calls x
expect 2 'mismatches has no part' check --scalar --mismatches m.h5
expect 2 'scalar has no part' check --digests d.h5 --scalar
expect 2 'variants has no part' check --variants 3
expect 2 'scalar has no part' record --attention --scalar b.h5 "$dump" --recipe sage2-8b
expect 2 'DUMP has no part' record b.h5 "$dump"
expect 2 'blocks has no part' record --blocks 32 b.h5
expect 2 'products has no part' record --scalar --products 4 b.h5
expect 2 'seed has no part' record --scalar --digests --seed 4 b.h5
expect 2 'recipe has no part' record --recipe sage2-8b b.h5

# Recipes and files are looked at before a card is asked for.
for command in "check $dump" "run --output b.h5 $dump" "record --attention b.h5 $dump" 'check --operands' 'emulate'; do
  # shellcheck disable=SC2086
  expect 2 "unknown recipe 'nope'" $command --recipe nope
done
expect 2 'exp2 = fa4-poly: no kernel of ours' check "$dump" --recipe sage2-8b --set exp2=fa4-poly
expect 2 'balance_alpha on the GPU' check "$dump" --recipe smoothquant-int8 --set balance_alpha=0.3
expect 2 'softmax = f64: not on the CUDA device' emulate --recipe exact
expect 2 'unknown recipe .*nope' check "$dump" --recipe sage2-8b --set exceptions=layer_00 --set exception_recipe=nope
expect 2 'vectors are of one recipe' record --attention b.h5 "$dump" --recipe sage2-8b --set exceptions=layer_00 \
  --set exception_recipe=fa3-fp8
# A head of two tokens with a mask, as safetensors: the header's length, the header, zeros.
header='{"q":{"dtype":"F16","shape":[1,1,2,2],"data_offsets":[0,8]},"k":{"dtype":"F16","shape":[1,1,2,2],
"data_offsets":[8,16]},"v":{"dtype":"F16","shape":[1,1,2,2],"data_offsets":[16,24]},"mask":{"dtype":"F16",
"shape":[2,2],"data_offsets":[24,32]}}'
{ printf "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))\0\0\0\0\0\0%s" "$header"; head -c 32 /dev/zero; } \
  >masked.safetensors
expect 2 'vectors have neither' record --attention b.h5 masked.safetensors --recipe sage2-8b
expect 2 'leave nothing' check "$dump" --recipe sage2-8b --calls 'no such call'
for command in 'check nofile.h5 --recipe sage2-8b' 'run nofile.h5 --recipe sage2-8b --output b.h5' \
  'record --attention b.h5 nofile.h5 --recipe sage2-8b' 'check --operands nofile.h5' 'check --digests nofile.h5'; do
  # shellcheck disable=SC2086
  expect 3 'nofile.h5' $command
done
[[ -z $("$program" check --digests nofile.h5 2>/dev/null) ]] || { echo 'rows of a file that is not there'; failed=1; }
[[ ! -e b.h5 ]] || { echo 'a refused command wrote b.h5'; failed=1; }

if "$program" list 2>&1 | grep -q 'no CUDA device'; then
  for command in 'record /dev/null' 'record --digests /dev/null' 'record --scalar /dev/null' 'check' 'check --scalar' \
    'check --operands' 'probe' 'list' "check $dump --recipe sage2-8b" "run $dump --recipe sage2-8b --output b.h5" \
    "record --attention b.h5 $dump --recipe sage2-8b" "check --operands $dump" 'emulate --recipe sage2-8b'; do
    # shellcheck disable=SC2086
    expect 3 'no CUDA device' $command
  done
else
  expect 2 'no instruction' list --only 'no such name'
fi
exit "$failed"
