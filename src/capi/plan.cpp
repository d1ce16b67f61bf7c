// The plan handle and all that takes one. Tested in tests/capi.
#include <attn/attn.h>

#include <attn/attn.hpp>
#include <memory>
#include <utility>

#include "capi/error.hpp"
#include "capi/structs.hpp"
#include "capi/text.hpp"
#include "core/refusal.hpp"

using attn::Status;
using attn::capi::guarded;

// "attnplan" in memory order. It tells a plan from a pointer to something else and, as far as one can, from a
// plan that was destroyed.
constexpr std::uint64_t kPlanMark = 0x6E616C706E747461U;

struct attn_plan_t {
  std::uint64_t mark = kPlanMark;
  attn::Plan plan;
};

namespace {

Status check_plan(const attn_plan_t* plan) {
  if (plan == nullptr) {
    return attn::core::invalid("plan", "null", "what attn_plan_create made");
  }
  if (reinterpret_cast<std::uintptr_t>(plan) % alignof(attn_plan_t) != 0 || plan->mark != kPlanMark) {
    return attn::core::invalid("plan", "not a plan, or one that was destroyed", "what attn_plan_create made");
  }
  return {};
}

// For the getters: checks the handle and the place of the answer.
template <class T>
Status check_query(const attn_plan_t* plan, const char* name, const T* out) {
  ATTN_RETURN_IF_ERROR(check_plan(plan));
  if (out == nullptr) {
    return attn::core::invalid(name, "null", "the address of a variable for the answer");
  }
  return {};
}

}  // namespace

attn_status_t attn_plan_create(const attn_problem_t* problem, const attn_plan_options_t* options,
                               attn_plan_t** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) {
      return attn::core::invalid("plan", "null", "the address of a variable for the plan");
    }
    *plan = nullptr;
    attn::Problem p;
    attn::PlanOptions o;
    ATTN_RETURN_IF_ERROR(attn::capi::read(problem, &p));
    ATTN_RETURN_IF_ERROR(attn::capi::read(options, &o));
    auto made = std::make_unique<attn_plan_t>();
    ATTN_RETURN_IF_ERROR(attn::make_plan(p, o, &made->plan));
    *plan = made.release();
    return {};
  });
}

void attn_plan_destroy(attn_plan_t* plan) {
  if (check_plan(plan).ok()) {
    *static_cast<volatile std::uint64_t*>(&plan->mark) = 0;
    delete plan;
  }
}

attn_status_t attn_plan_workspace_bytes(const attn_plan_t* plan, size_t* bytes) {
  return guarded([&]() -> Status {
    ATTN_RETURN_IF_ERROR(check_query(plan, "bytes", bytes));
    *bytes = plan->plan.workspace_bytes();
    return {};
  });
}

attn_status_t attn_plan_backend(const attn_plan_t* plan, attn_backend_t* backend) {
  return guarded([&]() -> Status {
    ATTN_RETURN_IF_ERROR(check_query(plan, "backend", backend));
    *backend = static_cast<attn_backend_t>(plan->plan.backend());
    return {};
  });
}

attn_status_t attn_plan_num_splits(const attn_plan_t* plan, int32_t* num_splits) {
  return guarded([&]() -> Status {
    ATTN_RETURN_IF_ERROR(check_query(plan, "num_splits", num_splits));
    *num_splits = plan->plan.num_splits();
    return {};
  });
}

attn_status_t attn_plan_kernel(const attn_plan_t* plan, char* buffer, size_t capacity, size_t* length) {
  return guarded([&]() -> Status {
    ATTN_RETURN_IF_ERROR(check_plan(plan));
    ATTN_RETURN_IF_ERROR(attn::capi::check_buffer(buffer, capacity));
    attn::capi::copy_text(plan->plan.kernel(), buffer, capacity, length);
    return {};
  });
}

attn_status_t attn_plan_explain(const attn_plan_t* plan, char* buffer, size_t capacity, size_t* length) {
  return guarded([&]() -> Status {
    ATTN_RETURN_IF_ERROR(check_plan(plan));
    ATTN_RETURN_IF_ERROR(attn::capi::check_buffer(buffer, capacity));
    attn::capi::copy_text(plan->plan.explain(), buffer, capacity, length);
    return {};
  });
}

attn_status_t attn_run(const attn_plan_t* plan, const attn_tensors_t* tensors, void* workspace,
                       size_t workspace_bytes, void* stream) {
  return guarded([&]() -> Status {
    ATTN_RETURN_IF_ERROR(check_plan(plan));
    attn::Tensors t;
    ATTN_RETURN_IF_ERROR(attn::capi::read(tensors, &t));
    return attn::run(plan->plan, t, workspace, workspace_bytes, stream);
  });
}
