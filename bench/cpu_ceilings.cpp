// What a CPU can do, for bench/cpu_scaling.py: the rates that `attn bench` divides by, with a C interface.
// The shared library does not export them, so the script compiles this and links it against the static one.
// Tested in tests/cli/cpu_scaling_test.py; the measuring itself in tests/unit/cpu_levels_test.cpp.
#include "cpu/cpu_backend.hpp"

extern "C" double cpu_fma_peak(const char* level, double seconds) {
  return attn::cpu::measure_fma_peak_gflops(level, seconds);
}

extern "C" double cpu_stream(int threads, double seconds) {
  return attn::cpu::measure_stream_gbs(threads, seconds);
}
