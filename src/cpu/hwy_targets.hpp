// Which Highway targets the CPU backend is built for, and how a compile unit's per-target functions are
// collected into a KernelTable. Include before anything of Highway, in every file that includes Highway, so
// that all units agree. Tested in tests/unit/cpu_levels_test.cpp.
#pragma once

// Left out: SSSE3 and AVX3_DL, whose extra instructions no kernel here uses; the scalable SVE and RVV, whose
// vector length is not a compile-time constant; and EMU128, which SCALAR covers. (Bits: hwy/detect_targets.h;
// undefined names are 0 in newer and older Highways.)
#define HWY_BROKEN_EMU128 1  // so that the plain baseline is SCALAR with every compiler
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_EMU128)

// On A64 NEON is the baseline, which would leave SCALAR out: there too it is built, as the level that is
// checked against plain code everywhere.
#if defined(__aarch64__)
#define HWY_COMPILE_ALL_ATTAINABLE
#endif
