// make_plan, run and explain. Tested in tests/unit/plan_test.cpp.
#include <attn/plan.hpp>
#include <exception>
#include <new>
#include <utility>

#include "core/limits.hpp"
#include "core/plan_impl.hpp"
#include "core/refusal.hpp"
#include "core/tune_file.hpp"

namespace attn::inline v1 {

Plan::Plan() noexcept = default;
Plan::~Plan() = default;
Plan::Plan(const Plan&) noexcept = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(const Plan&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::Plan(std::shared_ptr<const PlanImpl> impl) noexcept : impl_(std::move(impl)) {}

bool Plan::valid() const noexcept {
  return impl_ != nullptr;
}

// The accessors of an empty plan answer with what an empty problem has.
const Problem& Plan::problem() const noexcept {
  static const Problem kNone;
  // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.UndefReturn): valid() is that impl_ is not null
  return valid() ? impl_->problem : kNone;
}
Backend Plan::backend() const noexcept {
  return valid() ? impl_->backend : Backend::kAuto;
}
std::size_t Plan::workspace_bytes() const noexcept {
  return valid() ? impl_->backend_plan->workspace_bytes : 0;
}
int Plan::num_splits() const noexcept {
  return valid() ? static_cast<int>(impl_->backend_plan->num_splits) : 0;
}
const std::string& Plan::kernel() const noexcept {
  static const std::string kNone;
  return valid() ? impl_->backend_plan->kernel : kNone;
}

std::string Plan::explain() const {
  if (!valid()) {
    return "no plan\n";
  }
  std::string text = "problem: " + to_string(impl_->problem) + "\n";
  text += std::string("backend: ") + to_string(impl_->backend) + "\n";
  text += "kernel: " + kernel() + "\n";
  text += "splits: " + std::to_string(num_splits()) + "\n";
  for (const std::string& note : impl_->backend_plan->notes) {
    text += note + "\n";
  }
  text += "workspace: " + std::to_string(workspace_bytes()) + " bytes\n";
  for (const BackendSupport& entry : impl_->considered) {
    if (entry.backend == impl_->backend) {
      continue;
    }
    text += std::string("not ") + to_string(entry.backend) + ": ";
    text += entry.supported ? std::string("not asked for") : entry.reason;
    text += "\n";
  }
  return text;
}

namespace {

Status make_plan_of(const Problem& problem, const PlanOptions& options, Plan* plan) {
  ATTN_RETURN_IF_ERROR(validate(problem));
  if (options.backend != Backend::kAuto && options.backend != Backend::kCpu &&
      options.backend != Backend::kCuda) {
    return core::invalid("backend", static_cast<std::int64_t>(options.backend),
                         "0 (auto), 1 (cpu), 2 (cuda)");
  }
  ATTN_RETURN_IF_ERROR(core::check_range("threads", options.threads, 0, core::kMaxLength));
  ATTN_RETURN_IF_ERROR(core::check_range("device", options.device, 0, core::kMaxLength));

  auto impl = std::make_shared<PlanImpl>();
  impl->problem = problem;
  impl->options = options;
  const core::BackendEntry* chosen = nullptr;
  if (options.backend != Backend::kAuto) {
    chosen = core::find_backend(options.backend);
    if (chosen == nullptr) {
      return {StatusCode::kUnavailable, std::string("backend is ") + to_string(options.backend) +
                                            "; allowed: a backend that is part of this build (attn list)"};
    }
    if (const Status status = core::can(*chosen, problem, options); !status.ok()) {
      return {status.code(), std::string("backend ") + to_string(options.backend) + ": " + status.message()};
    }
    impl->considered = support(problem, options);
  } else {
    Status first_refusal;
    impl->considered = support(problem, options);
    for (const core::BackendEntry& entry : core::backends()) {
      Status status = core::can(entry, problem, options);
      if (status.ok()) {
        chosen = &entry;
        break;
      }
      first_refusal = std::move(status);  // the last one in order of preference: the CPU's
    }
    if (chosen == nullptr) {
      if (!options.kernel.empty()) {  // every backend's sentence says what it has
        std::string all;
        for (const BackendSupport& entry : impl->considered) {
          all += (all.empty() ? "" : "; ") + std::string("not ") + to_string(entry.backend) + ": " +
                 entry.reason;
        }
        return {first_refusal.code(), std::move(all)};
      }
      return first_refusal;
    }
  }
  impl->backend = chosen->backend;
  std::string note;
  ATTN_RETURN_IF_ERROR(core::tuned_kernel(*chosen, problem, &impl->options, &note));
  ATTN_RETURN_IF_ERROR(chosen->plan(problem, impl->options, &impl->backend_plan));
  if (!note.empty()) {
    impl->backend_plan->notes.push_back(std::move(note));
  }
  *plan = Plan(std::move(impl));
  return {};
}

}  // namespace

Status make_plan(const Problem& problem, const PlanOptions& options, Plan* plan) {
  try {
    return make_plan_of(problem, options, plan);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the plan"};
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, std::string("make_plan: ") + error.what()};
  }
}

Status run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t workspace_bytes,
           void* stream) {
  if (!plan.valid()) {
    return {StatusCode::kInvalidArgument, "plan is empty; allowed: one that make_plan has filled"};
  }
  const PlanImpl& impl = *plan.impl();
  const core::BackendEntry* backend = core::find_backend(impl.backend);
  if (backend == nullptr) {
    return {StatusCode::kInternal, "the plan's backend is not part of this build"};
  }
  try {
    ATTN_RETURN_IF_ERROR(validate(impl.problem, tensors, backend->metadata_on_host));
    const std::size_t needed = plan.workspace_bytes();
    if (workspace_bytes < needed) {
      return core::invalid("workspace_bytes", static_cast<std::int64_t>(workspace_bytes),
                           "at least " + std::to_string(needed) + ", Plan::workspace_bytes()");
    }
    if (needed > 0 && workspace == nullptr) {
      return core::invalid("workspace", "null", "the address of " + std::to_string(needed) + " bytes");
    }
    if (needed > 0 && reinterpret_cast<std::uintptr_t>(workspace) % core::kWorkspaceAlignment != 0) {
      return core::invalid("workspace", "not aligned",
                           "an address that is a multiple of " + std::to_string(core::kWorkspaceAlignment));
    }
    if (impl.backend == Backend::kCpu && stream != nullptr) {
      return core::invalid("stream", "given", "null: the CPU backend has no streams");
    }
    return backend->run(impl, tensors, workspace, stream);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the run"};
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, std::string("run: ") + error.what()};
  }
}

}  // namespace attn::inline v1
