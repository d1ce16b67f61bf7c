// The judge at work: runs a backend on a case and compares every written bit with the float64 reference by
// rules 4 to 9, 11 and 13 of docs/contract.md: errors, empty rows, NaN and Inf, guards, gaps, inputs, caches.
// Tested in tests/conformance/check_test.cpp, where broken backends must be caught.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verify/buffers.hpp"
#include "verify/case.hpp"

namespace attn::verify {

// What a runner tells beside the outputs.
struct RunInfo {
  std::string kernel;
  std::size_t workspace_bytes = 0;
  std::int64_t num_splits = 1;
  std::string guard_failure;  // a broken guard of the workspace, in words; empty: intact
};

// Runs buffers.problem() on buffers.tensors() and leaves the results in the blocks. The plan is made by the
// runner. `workspace_fill` is the byte that fills the workspace before the run.
using Runner = std::function<Status(Buffers& buffers, const PlanOptions& options, std::uint8_t workspace_fill,
                                    RunInfo* info)>;

// A plan for each kernel of the options' backend (kAuto: the first that takes the problem) that computes the
// problem; the options themselves where the backend refuses it or takes no kernels by name.
[[nodiscard]] std::vector<PlanOptions> each_kernel(const Problem& problem, const PlanOptions& options);

// One call on host tensors, whatever the backend: make_plan, run on a workspace of its own, and for a CUDA
// plan the copies there and back.
[[nodiscard]] Status call(const Problem& problem, const PlanOptions& options, const Tensors& tensors);

// make_plan and run, on host memory, with a guarded workspace.
[[nodiscard]] Runner host_runner();

struct CheckOptions {
  double max_scores = 16777216.0;  // 2²⁴; above: chosen rows (the contract's "Judging large problems")
  std::int64_t random_rows = 256;  // of those, so many seeded ones
  bool against_cpu = false;        // expected rows from the CPU backend in fp32 (rows.hpp), not the reference
  bool bitwise = false;            // run twice, with another workspace fill: the same bits
  std::uint8_t workspace_fill = 0xFF;  // NaN in every dtype
};

struct Report {
  bool passed = false;
  bool refused = false;      // the backend said kUnsupported or kUnavailable: neither passed nor a failure
  std::string kernel;        // as RunInfo
  std::string failure;       // the first failure, with its row; empty when passed. When refused: the reason
  std::string line;          // reproduces the case: to_string(case)
  double max_error_o = 0;    // largest |ΔO| over the rows checked
  double max_ratio_o = 0;    // largest |ΔO| / bound: at most 1 when passed
  double max_error_lse = 0;  // largest |ΔLSE| over finite values
  double max_ratio_lse = 0;
  std::int64_t rows_checked = 0;
  std::size_t workspace_bytes = 0;
};

// Expected results of a case, computed once and compared with as many backends as wanted.
class Judge {
 public:
  // `prepare` may change what the buffers hold before the results are computed.
  Judge(const Case& c, const CheckOptions& options, const std::function<void(Buffers&)>& prepare = {});
  ~Judge();
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  // Runs and compares.
  [[nodiscard]] Report check(const Runner& runner, const PlanOptions& plan_options);
  // Compares what the blocks hold now (after a run by somebody else).
  [[nodiscard]] Report compare();
  [[nodiscard]] Buffers& buffers() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One case on one backend: complete, validate, run, judge.
[[nodiscard]] Report check(const Case& c, const PlanOptions& plan_options, const CheckOptions& options = {},
                           const Runner& runner = host_runner());

// The same on several plans, with the reference computed once. Stops early when `each` returns false.
void check_each(const Case& c, std::span<const PlanOptions> plans, const CheckOptions& options,
                const Runner& runner, const std::function<bool(const Report&)>& each);

// The largest |value − reference| / bound of results held by the caller (`attn run --verify`): compares
// tensors.o (and lse, if present) with the reference on all rows, or on chosen ones above max_scores.
[[nodiscard]] Report compare_with_reference(const Problem& problem, const Tensors& tensors,
                                            const CheckOptions& options = {});

}  // namespace attn::verify
