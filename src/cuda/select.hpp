// Which kernel computes a problem, or why none does: pure functions on the problem, without a device.
// Tested in tests/unit/cuda_select_test.cpp.
#pragma once

#include <attn/problem.hpp>
#include <string>
#include <vector>

#include "cuda/launch.hpp"

namespace attn::cuda {

// ok if some kernel of the table computes the (validated) problem.
Status kernels_can(const Problem& problem);

// Every kernel that computes the problem, the one first that is taken unasked.
[[nodiscard]] std::vector<const KernelEntry*> kernels_for(const Problem& problem);

// What users call a kernel: "sm90:fwd_d128_bf16_band".
[[nodiscard]] std::string public_name(const KernelEntry& entry);

// The (validated) problem as the kernels see it.
[[nodiscard]] DenseShape dense_shape(const Problem& problem);

}  // namespace attn::cuda
