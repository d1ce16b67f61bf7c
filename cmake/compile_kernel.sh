#!/bin/sh
# compile_kernel.sh LOG NVCC ARGUMENTS…: runs nvcc, keeps what it says in LOG with its CPU time (the last line,
# "times: USER SYSTEM" of the children), and shows it when it fails. Used by cmake/cuda_kernels.cmake.
log=$1
shift
"$@" >"$log" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
  cat "$log" >&2
  rm -f "$log"
  exit "$status"
fi
# The second line that `times` prints is that of the children (POSIX).
echo "times: $(times | tail -n 1)" >>"$log"
