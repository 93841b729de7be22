#!/usr/bin/env bash
# Everything that qattn-gpu measures on the GPU at hand, in one go, each step with a time limit:
#   cuda/run_all.sh OUT [PROGRAM]
# OUT gets the recordings, a log of each step and summary.txt; PROGRAM is build/release/bin/qattn-gpu if it is not named;
# the program qattn beside it draws the synthetic heads.
# SECONDS_PER_CHECK (60) is the time of each live check. Builds nothing. Exits with 1 when a step failed.
set -uo pipefail

if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "usage: $0 OUT [PROGRAM]" >&2
  exit 2
fi
out=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${2:-$root/build/release/bin/qattn-gpu}
seconds=${SECONDS_PER_CHECK:-60}
if [[ ! -x $program ]]; then
  echo "$0: $program is no program; build it first or name it" >&2
  exit 2
fi
mkdir -p "$out" || exit 3
summary=$out/summary.txt
: >"$summary" || exit 3
failed=0

# step NAME LIMIT ARGUMENTS...: one run of the program, its output in OUT/NAME.log.
step() {
  local name=$1 limit=$2 start status
  shift 2
  start=$(date +%s.%N)
  timeout "$limit" "$program" "$@" >"$out/$name.log" 2>&1
  status=$?
  printf '%-24s exit %3d  %6.1f s  %s\n' "$name" "$status" "$(awk -v a="$start" -v b="$(date +%s.%N)" "BEGIN { print b - a }")" \
    "$(tail -n 1 "$out/$name.log")" | tee -a "$summary"
  [[ $status -eq 0 ]] || failed=1
}

# draw NAME OPTIONS...: a synthetic dump, OUT/heads/NAME.h5.
draw() {
  local name=$1
  shift
  "${program%/*}/qattn" synth "$out/heads/$name.h5" --quiet "$@" >>"$out/draw.log" 2>&1 || failed=1
}

# Attention: every length twice, full and causal, with outliers and with biased channels; grouped heads.
mkdir -p "$out/heads" "$out/vectors" || exit 3
for n in 1 2 63 64 65 127 128 129 500 1000 1024 4096; do
  for d in 64 128; do
    heads=(--tokens "$n" --head-dim "$d" --q-heads 2 --kv-heads 1 --seed $((n + d)))
    for distribution in fa3-outlier channel-bias; do
      draw "${distribution}_d${d}_n$n" --distribution $distribution "${heads[@]}"
      draw "${distribution}_d${d}_n${n}_causal" --distribution $distribution "${heads[@]}" --causal
    done
  done
done
draw ../vectors/outliers --distribution fa3-outlier --outlier-rate 0.01 --tokens 200 --head-dim 64 --q-heads 2 \
  --kv-heads 1 --seed 11 --causal
draw ../vectors/biased --distribution channel-bias --q-tokens 96 --kv-tokens 260 --head-dim 128 --q-heads 1 --seed 12
recipes=(--recipe sage2-8b --recipe sage2-4b --recipe sage1-B --recipe fa2-fp16 --recipe fa3-fp8)

step list 30 list
step attention-real 600 check "$root/data/real" "${recipes[@]}"
step attention-synthetic 600 check "$out/heads" "${recipes[@]}"
step attention-mma 600 check "$out/heads" --recipe sage2-8b --recipe fa3-fp8 --set qk_accumulator=sm89.mma \
  --set accumulator=sm89.mma
step record-attention 60 record --attention "$out/own_kernels.h5" "$out/vectors" "${recipes[@]}" --recipe sage2-8b-sm89
step record 60 record "$out/mma_vectors.h5"
step record-scalar 60 record --scalar "$out/scalar_vectors.h5"
step probe 120 probe
step check 240 check --seconds "$seconds" --mismatches "$out/mismatches.h5"
step check-scalar 240 check --scalar --seconds "$seconds"
step record-digests 300 record --digests "$out/mma_digests.h5"
step record-scalar-digests 300 record --scalar --digests "$out/scalar_digests.h5"
step check-digests 1200 check --digests "$out/mma_digests.h5"
step check-scalar-digests 1200 check --digests "$out/scalar_digests.h5"
exit "$failed"
