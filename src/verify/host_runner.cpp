// make_plan and run on host memory. Contract: check.hpp.
#include <fmt/format.h>

#include <cstring>

#include "verify/check.hpp"

namespace attn::verify {

Runner host_runner() {
  return [](Buffers& buffers, const PlanOptions& options, std::uint8_t workspace_fill, RunInfo* info) {
    Plan plan;
    if (Status status = make_plan(buffers.problem(), options, &plan); !status.ok()) {
      return status;
    }
    info->kernel = plan.kernel();
    info->workspace_bytes = plan.workspace_bytes();
    info->num_splits = plan.num_splits();
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
