// make_plan and run on host memory; a CUDA plan's blocks go to the device and back whole, guards and gaps
// included. Contract: check.hpp.
#include <fmt/format.h>

#include <cstring>

#include "verify/check.hpp"
#ifdef ATTN_HAVE_CUDA
#include "core/refusal.hpp"
#include "cuda/staging.hpp"
#endif

namespace attn::verify {
namespace {

#ifdef ATTN_HAVE_CUDA
Status run_on_device(const Plan& plan, Buffers& buffers, std::uint8_t workspace_fill) {
  std::unique_ptr<cuda::Staging> staging;
  ATTN_RETURN_IF_ERROR(cuda::Staging::open(plan, workspace_fill, &staging));
  for (Block& block : buffers.blocks()) {
    ATTN_RETURN_IF_ERROR(staging->add_range(block.base(), block.bytes(), block.output()));
  }
  ATTN_RETURN_IF_ERROR(staging->set_tensors(buffers.tensors()));
  ATTN_RETURN_IF_ERROR(staging->run());
  return staging->fetch();
}
#endif

}  // namespace

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
      return run_on_device(plan, buffers, workspace_fill);
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
