// make_plan and run on host memory; a CUDA plan's blocks go to the device and back whole, guards and gaps
// included. Contract: check.hpp.
#include <fmt/format.h>

#include <cstring>

#include "core/plan_impl.hpp"
#include "verify/check.hpp"
#ifdef ATTN_HAVE_CUDA
#include "core/refusal.hpp"
#include "cuda/staging.hpp"
#endif

namespace attn::verify {
namespace {

#ifdef ATTN_HAVE_CUDA
// Ranges that `blocks` name go to the device whole, guards included; other tensors by their own extent.
Status run_on_device(const Plan& plan, std::span<Block> blocks, const Tensors& tensors,
                     std::uint8_t workspace_fill) {
  std::unique_ptr<cuda::Staging> staging;
  ATTN_RETURN_IF_ERROR(cuda::Staging::open(plan, workspace_fill, &staging));
  for (Block& block : blocks) {
    ATTN_RETURN_IF_ERROR(staging->add_range(block.base(), block.bytes(), block.output()));
  }
  ATTN_RETURN_IF_ERROR(staging->set_tensors(tensors));
  ATTN_RETURN_IF_ERROR(staging->run());
  return staging->fetch();
}
#endif

}  // namespace

std::vector<PlanOptions> each_kernel(const Problem& problem, const PlanOptions& options) {
  if (!validate(problem).ok()) {
    return {options};
  }
  for (const core::BackendEntry& entry : core::backends()) {
    PlanOptions chosen = options;
    chosen.backend = entry.backend;
    if ((options.backend != Backend::kAuto && options.backend != entry.backend) ||
        !entry.support(problem, chosen).ok()) {
      continue;
    }
    std::vector<PlanOptions> plans;
    if (entry.candidates != nullptr) {
      for (std::string& name : entry.candidates(problem, chosen)) {
        plans.push_back(chosen);
        plans.back().kernel = std::move(name);
      }
    }
    return plans.empty() ? std::vector<PlanOptions>{chosen} : plans;
  }
  return {options};
}

Status call(const Problem& problem, const PlanOptions& options, const Tensors& tensors) {
  constexpr std::uint8_t kFill = 0xFF;  // NaN in every dtype
  Plan plan;
  if (Status status = make_plan(problem, options, &plan); !status.ok()) {
    return status;
  }
#ifdef ATTN_HAVE_CUDA
  if (plan.backend() == Backend::kCuda) {
    return run_on_device(plan, {}, tensors, kFill);
  }
#endif
  const Block workspace("workspace", plan.workspace_bytes(), true);
  std::memset(workspace.payload(), kFill, workspace.payload_bytes());
  return run(plan, tensors, plan.workspace_bytes() > 0 ? workspace.payload() : nullptr,
             plan.workspace_bytes());
}

Runner host_runner() {
  return [](Buffers& buffers, const PlanOptions& options, std::uint8_t workspace_fill, RunInfo* info) {
    Plan plan;
    if (Status status = make_plan(buffers.problem(), options, &plan); !status.ok()) {
      return status;
    }
    info->kernel = plan.kernel();
    info->workspace_bytes = plan.workspace_bytes();
    info->num_splits = plan.num_splits();
#ifdef ATTN_HAVE_CUDA
    if (plan.backend() == Backend::kCuda) {
      return run_on_device(plan, buffers.blocks(), buffers.tensors(), workspace_fill);
    }
#endif
    const Block workspace("workspace", plan.workspace_bytes(), true);
    std::memset(workspace.payload(), workspace_fill, workspace.payload_bytes());
    // A plan that needs none must not look at the pointer.
    void* pointer = plan.workspace_bytes() > 0 ? workspace.payload() : nullptr;
    Status status = run(plan, buffers.tensors(), pointer, plan.workspace_bytes());
    if (const auto at = workspace.broken_guard()) {
      info->guard_failure = fmt::format("the guard of the workspace ({} bytes) was written at byte {}",
                                        workspace.payload_bytes(), *at);
    }
    return status;
  };
}

}  // namespace attn::verify
