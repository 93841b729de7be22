#!/usr/bin/env bash
# Everything that qattn-gpu measures on the GPU at hand, in one go, each step with a time limit:
#   cuda/run_all.sh OUT [PROGRAM]
# OUT gets the recordings, a log of each step and summary.txt; PROGRAM is build/release/bin/qattn-gpu if it is not named.
# SECONDS_PER_CHECK (60) is the time of each live check. Builds nothing. Exits with 1 when a step failed.
set -uo pipefail

if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "usage: $0 OUT [PROGRAM]" >&2
  exit 2
fi
out=$1
program=${2:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/release/bin/qattn-gpu}
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

step list 30 list
step record 60 record "$out/mma_vectors.h5"
step record-scalar 60 record --scalar "$out/scalar_vectors.h5"
step probe 120 probe
step check 240 check --seconds "$seconds" --mismatches "$out/mismatches.h5"
step check-scalar 240 check --scalar --seconds "$seconds"
step record-digests 300 record --digests "$out/mma_digests.h5"
step record-scalar-digests 300 record --scalar --digests "$out/scalar_digests.h5"
exit "$failed"
