#!/bin/sh
# compile_kernel.sh LOG NVCC ARGUMENTS…: runs nvcc, keeps what it says in LOG with its CPU time (the last line, user
# and system), and shows it when it fails. Used by cmake/cuda_kernels.cmake.
log=$1
shift
"$@" >"$log" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
  cat "$log" >&2
  rm -f "$log"
  exit "$status"
fi
# Not in a subshell: the shell's second line is then the time of its children, nvcc's (POSIX, times).
echo "times of the shell and of its children:" >>"$log"
times >>"$log"
