#!/usr/bin/env bash
# device_test.sh QATTN DUMPS: where there is a CUDA device, `--device cuda` gives the rows of the CPU; where there is
# none it gives status 3, and status 2 in a build without CUDA. What the device does not do is refused by its key.
set -u
program=$1
dump=$2/kwt1_qkv.h5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

fail() {
  echo "$*"
  failed=1
}

run() { "$program" run "$dump" --calls layer_00 --heads 0:1 --no-cache --quiet --json "$@" 2>"$scratch/error"; }

# rows FILE: the part of a document that must not depend on the device.
rows() { sed -n '/^"rows":/,$p' "$1"; }

"$program" run --help | grep -q -- '--device' || fail "no --device in the help of run"
run --recipe sage2-8b --device tpu >/dev/null
[[ $? -eq 2 ]] || fail "an unknown device: not status 2"
run --recipe sage2-8b --device cuda >"$scratch/cuda.json"
status=$?
if grep -q 'this build has no CUDA' "$scratch/error"; then
  [[ $status -eq 2 ]] || fail "without CUDA: status $status"
elif grep -q 'no CUDA device' "$scratch/error"; then
  [[ $status -eq 3 ]] || fail "without a device: status $status"
else
  [[ $status -eq 0 ]] || fail "status $status: $(cat "$scratch/error")"
  run --recipe sage2-8b --device cpu >"$scratch/cpu.json"
  [[ -s $scratch/cuda.json ]] || fail "no rows"
  [[ "$(rows "$scratch/cpu.json")" == "$(rows "$scratch/cuda.json")" ]] || fail "the rows differ"
  run --recipe exact --device cuda >/dev/null
  [[ $? -eq 2 ]] || fail "softmax = f64: not status 2"
  grep -q 'softmax' "$scratch/error" || fail "no key in: $(cat "$scratch/error")"
fi
exit "$failed"
