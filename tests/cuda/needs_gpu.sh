#!/usr/bin/env bash
# needs_gpu.sh PROGRAM ARGUMENTS...: the program's exit status, or 77 (skipped) where there is no CUDA device.
program=$1
shift
if "$program" list 2>&1 | grep -q 'no CUDA device'; then
  echo "skipped: no CUDA device"
  exit 77
fi
exec "$program" "$@"
