// Breaks every rule that check_abi.py checks: exports a symbol of its own, needs a library that is not allowed,
// and uses AVX2 outside a dispatched target, in a static initialiser too. Only the checks' own tests use it.
float offender_table[64];

__attribute__((visibility("default"))) void offender_scale(float* values, float by) {
  for (int i = 0; i < 64; ++i) values[i] = values[i] * by + 1.0F;
}

static const int initialised = [] {
  for (int i = 0; i < 64; ++i) offender_table[i] += 1.0F;
  return 1;
}();

int offender_initialised() { return initialised; }
