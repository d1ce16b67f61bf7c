// A few hundred conformance cases in under a minute on this very machine: what `attn selftest` runs.
// Tested in tests/conformance/selftest_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/check.hpp"

namespace attn::verify {

struct SelftestProgress {
  std::int64_t done = 0;
  std::int64_t total = 0;
  const Report* last = nullptr;  // of the case just judged
};

struct SelftestOptions {
  std::vector<PlanOptions>
      plans;  // each case runs on each; empty: every runnable SIMD level, and the GPU where one is usable
  std::uint64_t seed = 1;
  std::int64_t random_cases = 150;  // beside the fixed list
  double time_limit_seconds = 50;   // random cases stop here; the fixed list always runs
  Runner runner;                    // empty: host_runner()
  // Called after each judged case; returning false stops the run.
  std::function<bool(const SelftestProgress&)> progress;
};

struct SelftestSummary {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t refused = 0;  // by the backend: kUnsupported
  double seconds = 0;
  double max_ratio_o = 0;  // worst error / bound of all
  std::string worst_line;  // its case
  std::vector<Report> failures;
  bool stopped = false;  // by the progress callback
};

[[nodiscard]] SelftestSummary selftest(const SelftestOptions& options);

}  // namespace attn::verify
