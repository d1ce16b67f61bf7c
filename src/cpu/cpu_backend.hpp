// The CPU backend's face to core: tiled online-softmax attention in Google Highway, dispatched to the best
// SIMD level at run time. Tested by tests/conformance over every level this machine has.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plan_impl.hpp"

namespace attn::cpu {

Status support(const Problem& problem, const PlanOptions& options);
Status plan(const Problem& problem, const PlanOptions& options, std::unique_ptr<BackendPlan>* result);
Status run(const PlanImpl& impl, const Tensors& tensors, void* workspace, void* stream);

[[nodiscard]] std::vector<CpuLevel> levels();

// A kernel of this backend is a SIMD level, "cpu:avx3": those that run here, or the one that cpu_level or
// ATTN_CPU_LEVEL asks for. Every level computes every problem.
[[nodiscard]] std::vector<std::string> candidates(const Problem& problem, const PlanOptions& options);
[[nodiscard]] std::string device_name(const PlanOptions& options);  // the CPU's model
[[nodiscard]] std::vector<std::string> kernels();

// Floating-point rate of independent fp32 FMAs on the calling thread at a level, in GFLOP/s: what `attn
// bench` divides by. Runs for about `seconds`.
[[nodiscard]] double measure_fma_peak_gflops(const std::string& level, double seconds);
// Bandwidth of reading memory far larger than the caches with so many threads, in GB/s.
[[nodiscard]] double measure_stream_gbs(int threads, double seconds);

// min(CPU affinity, container quota, request); request 0: no request. At least 1.
[[nodiscard]] int thread_limit(int request);

}  // namespace attn::cpu
