// Breaks every rule that check_abi.py checks: exports a symbol of its own, needs a library that is not
// allowed, and uses AVX2 or SVE outside a dispatched target, in a static initialiser too, and AVX-512 in the
// namespace of AVX2. Only the checks' own tests use it.
float offender_table[64];

__attribute__((visibility("default"))) void offender_scale(float* values, float by) {
  for (int i = 0; i < 64; ++i) values[i] = values[i] * by + 1.0F;
}

static const int initialised = [] {
  for (float& x : offender_table) x += 1.0F;
  return 1;
}();

int offender_initialised() {
  return initialised;
}

#if defined(__x86_64__)
namespace N_AVX2 {
// NOLINTNEXTLINE(clang-diagnostic-ignored-attributes): only GCC knows prefer-vector-width
__attribute__((target("avx512f,prefer-vector-width=512"), visibility("default"))) void offender_add(
    float* values) {
  for (int i = 0; i < 64; ++i) values[i] += 1.0F;
}
}  // namespace N_AVX2
#endif
