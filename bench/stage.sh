#!/bin/sh
# Puts into one folder what a machine with a GPU needs to test and measure this build, where nothing can be
# installed: programs without symbols, their shared libraries, shape files, the Python package, gpu_tests.sh.
#   bench/stage.sh <build folder> <folder to fill>
# The programs find their libraries beside them (LD_LIBRARY_PATH is set by gpu_tests.sh) and their shape files by
# ATTN_SHAPES_DIR. Parts that the build does not have are left out with a line that says so.
set -eu
[ $# -eq 2 ] || { echo "usage: bench/stage.sh <build folder> <folder to fill>" >&2; exit 2; }
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$2/bin" "$2/lib" "$2/shapes" "$2/python"
stage=$(cd "$2" && pwd)

for program in tools/attn/attn tests/conformance/conformance_shapes tests/conformance/conformance_random \
               tests/conformance/conformance_public_reports tests/unit/unit_cuda tests/kernels/sm90_check; do
  if [ -x "$build/$program" ]; then
    strip -o "$stage/bin/$(basename "$program")" "$build/$program"
  else
    echo "left out: $program is not built"
  fi
done
library=$(find "$build" -name 'libattn.so.0*' -type f | head -n 1)
if [ -n "$library" ]; then
  strip --strip-unneeded -o "$stage/lib/libattn.so.0" "$library"
else
  echo "left out: libattn.so is not built"
fi
# What the programs load beside the C and C++ libraries of the system.
for program in "$stage"/bin/* "$stage"/lib/libattn.so.0; do
  [ -e "$program" ] || continue
  ldd "$program" | awk '/libhwy|libtbb|libgtest/ && $3 ~ "^/" { print $3 }'
done | sort -u | while read -r path; do
  cp -L "$path" "$stage/lib/"
done
cp "$root"/tests/conformance/shapes/*.txt "$stage/shapes/"
rm -rf "$stage/python/attn"
cp -r "$root/python/attn" "$stage/python/"
find "$stage/python" -name __pycache__ -type d -prune -exec rm -rf {} +
cp "$root/bench/gpu_tests.sh" "$stage/"
du -sm "$stage" | awk '{ print "staged " $1 " MiB in " $2 }'
