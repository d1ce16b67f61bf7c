// What a Plan holds, and what a backend must offer to be one: three functions behind a plain table, so that
// core knows no backend by name except in src/core/registry.cpp. Tested in tests/unit/plan_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace attn {

// Base of a backend's own decisions; derived in src/cpu and src/cuda.
struct BackendPlan {
  virtual ~BackendPlan() = default;
  std::string kernel;  // e.g. "cpu:avx3"
  std::size_t workspace_bytes = 0;
  std::int64_t num_splits = 1;
  std::vector<std::string> notes;  // lines of explain(), "name: value"
};

inline namespace v1 {
struct PlanImpl {
  Problem problem;
  PlanOptions options;
  Backend backend = Backend::kCpu;  // never kAuto
  std::unique_ptr<BackendPlan> backend_plan;
  std::vector<BackendSupport> considered;  // every backend, with the reason where it was not taken
};
}  // namespace v1

namespace core {

struct BackendEntry {
  Backend backend;
  // Whether this build and machine can do a *validated* problem; the message says why not.
  Status (*support)(const Problem&, const PlanOptions&);
  Status (*plan)(const Problem&, const PlanOptions&, std::unique_ptr<BackendPlan>*);
  // Tensors have passed validate(); the workspace is large enough and aligned.
  Status (*run)(const PlanImpl&, const Tensors&, void* workspace, void* stream);
  bool metadata_on_host;  // whether lengths and page tables are host memory, and so checked before a run
  // For attn::forward, which is given pointers and no backend. Null for a backend of host memory.
  int (*device_of)(const void* data);  // the device whose memory this is, or -1
  // Scratch of a call, in the order of its stream: may be captured in a graph.
  Status (*allocate)(const PlanImpl&, std::size_t bytes, void* stream, void** memory);
  void (*release)(const PlanImpl&, void* memory, void* stream);
  // The kernels that compute a problem which `support` takes, the one first that `plan` takes unasked: what
  // PlanOptions::kernel may name and `attn tune` measures. Null: kernels are not taken by name.
  std::vector<std::string> (*candidates)(const Problem&, const PlanOptions&);
  // The device that a plan of these options runs on, as tuned choices are filed. Null with `candidates`.
  std::string (*device_name)(const PlanOptions&);
  // Every kernel of this build, for `attn list`; null: none has a name of its own.
  std::vector<std::string> (*kernels)();
};

// In order of preference for Backend::kAuto.
[[nodiscard]] const std::vector<BackendEntry>& backends();
// Null if it is not part of this build.
[[nodiscard]] const BackendEntry* find_backend(Backend backend);
// The backend's `support`, and that PlanOptions::kernel, where it is set, is one of its candidates.
[[nodiscard]] Status can(const BackendEntry& entry, const Problem& problem, const PlanOptions& options);

}  // namespace core
}  // namespace attn
