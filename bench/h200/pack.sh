#!/bin/sh
# pack.sh FOLDER [CUTLASS_INCLUDE]: copies what a GPU machine needs to build and run the kernels' checks and
# timings into FOLDER: sources, CUTLASS's headers, and run.sh. There: sh FOLDER/run.sh BUILD_FOLDER TARGETS…
set -e
to=$1
cutlass=${2:-.venv-cuda/lib/python3*/site-packages/cutlass_library/source/include}
root=$(cd "$(dirname "$0")/../.." && pwd)
rm -rf "$to/src" "$to/cutlass.tgz"
mkdir -p "$to/src"
(cd "$root" && tar cf - include src/core/status.cpp src/core/*.hpp src/cuda cmake tests/kernels bench/h200) | tar xf - -C "$to/src"
(cd $cutlass/.. && tar czf - --exclude='cutlass/gemm' --exclude='cutlass/conv' include) >"$to/cutlass.tgz"
cp "$root/bench/h200/build.sh" "$to/build.sh"
du -sh "$to"
