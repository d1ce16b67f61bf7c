// The kernels of this build: one entry for each line of instances/manifest.json, made by
// cmake/cuda_kernels.cmake. Dispatch is a look-up by KernelKey. Tested in tests/unit/cuda_table_test.cpp.
#pragma once

#include <cstddef>
#include <span>

#include "cuda/sm90/config.hpp"

namespace attn::cuda {

struct KernelEntry {
  const char* name;  // of the kernel in its cubin, such as "sm90_fwd_d128_bf16_band"
  sm90::KernelKey key;
  sm90::KernelConfig config;
  const unsigned char* cubin;
  std::size_t cubin_bytes;
};

[[nodiscard]] std::span<const KernelEntry> kernels_table() noexcept;
// Development variants of the study (ATTN_CUDA_STUDY); not in the library.
[[nodiscard]] std::span<const KernelEntry> study_table() noexcept;

}  // namespace attn::cuda
