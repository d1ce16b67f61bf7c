// What a call costs: its exact arithmetic and memory traffic, its plan with workspace ready to run, and the
// time of repeated runs. Shared by run, bench and demo. Tested in tests/cli.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "args.hpp"
#include "verify/case.hpp"

namespace attn::tool {

// Counted from the mask and the lengths, not estimated.
struct Work {
  double visible_scores = 0;  // (query, key) pairs that are not masked, over batch and heads_q
  double flops = 0;           // 2 · visible_scores · (head_dim_qk + head_dim_v)
  double bytes = 0;           // Q, O, LSE, and each sequence's visible K and V, once
};
[[nodiscard]] Work work_of(const Problem& problem, const Tensors& tensors);

struct Timing {
  double median = 0;  // seconds a run
  double p10 = 0;
  double p90 = 0;
  std::int64_t samples = 0;
};

struct TimingOptions {
  double min_time = 0.5;  // seconds of measured runs
  std::int64_t min_samples = 5;
};

// A plan and its workspace: after this, a CPU run allocates nothing.
class Execution {
 public:
  // Throws Failure where no plan can be made.
  Execution(const Problem& problem, const PlanOptions& options);
  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  // Host tensors; a CUDA plan's go to the device and back.
  void run(const Tensors& tensors);
  // time_runs of this plan on host tensors. A CUDA plan's are copied once; its samples are device time,
  // between events, of as many runs as last 2 ms.
  [[nodiscard]] Timing time(const Tensors& tensors, const TimingOptions& options,
                            const std::function<void(std::int64_t samples)>& tick = {});

 private:
  struct Free {
    void operator()(void* p) const noexcept;
  };
  Plan plan_;
  std::unique_ptr<void, Free> workspace_;
};

// One run to warm up, then samples until both bounds are met. A sample is one run, or as many as last 50 µs,
// so that the clock's own cost stays below 0.1 %. `tick` is called between samples.
[[nodiscard]] Timing time_runs(const std::function<void()>& once, const TimingOptions& options,
                               const std::function<void(std::int64_t samples)>& tick = {});

// Peak fp32 FMA rate of the kernel's SIMD level on one thread, times `threads`: what a share of peak is of.
// Each level is measured once a process; nothing where the kernel is not the CPU's.
[[nodiscard]] std::optional<double> peak_gflops(const std::string& kernel, int threads);

// --backend, --device, --threads, --level and --config, as each subcommand that runs something has them.
struct PlanFlags {
  std::string backend = "auto";
  std::int64_t device = 0;
  std::int64_t threads = 0;
  std::string level;
  std::string config;

  void add(Options& options);
  [[nodiscard]] PlanOptions plan_options() const;
};

// Positional words as problem lines: an argument with spaces is a line of its own, and neighbours without
// spaces are the tokens of one, so that both `attn bench "sq8 d64 fp32"` and `attn bench sq8 d64 fp32` work.
[[nodiscard]] std::vector<std::string> join_problems(const std::vector<std::string>& words);
// The valid cases of such words and of shape files; at least one. Throws Failure.
[[nodiscard]] std::vector<verify::Case> cases_of(const std::vector<std::string>& problems,
                                                 const std::vector<std::string>& files);

}  // namespace attn::tool
