// The CUDA backend's face to core: dense attention on Hopper by the sm90 kernels. Tested by tests/negative,
// tests/unit/cuda_host_test.cpp (without a GPU) and, on one, by the conformance shapes and tests/kernels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plan_impl.hpp"

namespace attn::cuda {

Status support(const Problem& problem, const PlanOptions& options);
Status plan(const Problem& problem, const PlanOptions& options, std::unique_ptr<BackendPlan>* plan);
Status run(const PlanImpl& impl, const Tensors& tensors, void* workspace, void* stream);

// Kernels by name: BackendEntry in core/plan_impl.hpp.
[[nodiscard]] std::vector<std::string> candidates(const Problem& problem, const PlanOptions& options);
[[nodiscard]] std::string device_name(const PlanOptions& options);
[[nodiscard]] std::vector<std::string> kernels();

// For attn::forward. The device whose memory `data` is, or -1; scratch in the order of the stream.
[[nodiscard]] int device_of(const void* data);
Status allocate(const PlanImpl& impl, std::size_t bytes, void* stream, void** memory);
void release(const PlanImpl& impl, void* memory, void* stream);

}  // namespace attn::cuda
