// Which kernel computes a problem, or why none does: pure functions on the problem, without a device.
// Tested in tests/unit/cuda_select_test.cpp.
#pragma once

#include <attn/problem.hpp>

#include "cuda/launch.hpp"

namespace attn::cuda {

// ok if some kernel of the table computes the (validated) problem.
Status kernels_can(const Problem& problem);

struct Selection {
  const KernelEntry* entry = nullptr;
  DenseShape shape;
};
// Of a problem that kernels_can.
[[nodiscard]] Selection select_kernel(const Problem& problem);

}  // namespace attn::cuda
