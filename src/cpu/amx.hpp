// The level "amx": avx3, and the products of a tile by Intel AMX. Kernels that fill a KernelTable whose
// packed layouts are the tile registers' own. Tested in tests/unit/cpu_amx_test.cpp and, as a level, wherever
// the tests iterate the levels.
#pragma once

#include "cpu/kernels.hpp"

namespace attn::cpu {

// bf16 elements of a tile row, and keys or columns that go through the kernels together.
inline constexpr int kAmxStep = 32;

// Whether this CPU has AMX-BF16 and AVX512-BF16 and the system lets this process use the tile registers. The
// first call asks Linux for that (arch_prctl ARCH_REQ_XCOMP_PERM), once for the process and all its threads.
[[nodiscard]] bool amx_usable() noexcept;

// Puts the kernels for tiles of dtype into a table that avx3's were filled into. Only where amx_usable().
void fill_amx_kernels(DType dtype, KernelTable* table);

// … those of fp32 and fp16, which go through the tile registers as sums of three and of two bf16 numbers.
void fill_amx_parts(DType dtype, KernelTable* table);

}  // namespace attn::cpu
