#!/bin/sh
# build.sh FOLDER BUILD [CMAKE_OPTIONS…]: on the GPU machine, builds what pack.sh packed (nvcc, cmake and ninja
# are there). Used before sm90_check and speed.py.
set -e
from=$1
build=$2
shift 2
mkdir -p "$build/cutlass"
tar xzf "$from/cutlass.tgz" -C "$build/cutlass"
cmake -S "$from/src/bench/h200" -B "$build" -G Ninja -DATTN_NVCC="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" \
  -DCUTLASS_DIR="$build/cutlass" -DATTN_CUDA_ENV=/nonexistent "$@" >"$build/cmake.log" 2>&1 || { cat "$build/cmake.log"; exit 1; }
ninja -C "$build" sm90_check sm90_kernels >"$build/ninja.log" 2>&1 || { tail -n 60 "$build/ninja.log"; exit 1; }
grep -h -E "C75|warning|[1-9][0-9]* bytes (stack|spill)" "$build"/cuda/*/*.log | sort | uniq -c | head -20 || true
