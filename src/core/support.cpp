// Which backends can do a problem, with a sentence for each that cannot. Tested in tests/unit/plan_test.cpp
// and tests/negative.
#include <attn/plan.hpp>

#include "core/plan_impl.hpp"

namespace attn::core {

Status can(const BackendEntry& entry, const Problem& problem, const PlanOptions& options) {
  if (Status status = entry.support(problem, options); !status.ok() || options.kernel.empty()) {
    return status;
  }
  std::string names;
  if (entry.candidates != nullptr) {
    for (const std::string& name : entry.candidates(problem, options)) {
      if (name == options.kernel) {
        return {};
      }
      names += (names.empty() ? "" : ", ") + name;
    }
  }
  return {StatusCode::kUnsupported,
          "kernel is " + options.kernel + "; " + to_string(entry.backend) +
              (names.empty() ? " takes no kernel by name" : " computes this problem by: " + names)};
}

}  // namespace attn::core

namespace attn::inline v1 {
namespace {

constexpr Backend kBackends[] = {Backend::kCuda, Backend::kCpu};

}  // namespace

std::vector<BackendSupport> support(const Problem& problem, const PlanOptions& options) {
  const Status valid = validate(problem);
  std::vector<BackendSupport> result;
  for (const Backend backend : kBackends) {
    BackendSupport entry{backend, false, valid.ok() ? "not part of this build" : valid.message()};
    if (const core::BackendEntry* built = core::find_backend(backend); built != nullptr && valid.ok()) {
      const Status status = core::can(*built, problem, options);
      entry.supported = status.ok();
      entry.reason = status.message();
    }
    result.push_back(std::move(entry));
  }
  return result;
}

}  // namespace attn::inline v1
