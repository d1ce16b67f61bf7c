// How the reports of the judge are shown: a table row, a results row. Shared by verify and selftest.
// Tested in tests/cli.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "output.hpp"
#include "verify/check.hpp"

namespace attn::tool {

[[nodiscard]] Table report_table();
void add_report(Table* table, const verify::Report& report);
// problem, impl, kernel, max_error, max_error_of_bound, …, passed, refused, failure.
[[nodiscard]] nlohmann::ordered_json report_row(const verify::Report& report);

// What reproduces a report: the flags that chose the kernel, then the case.
[[nodiscard]] std::string reproduce(const PlanOptions& plan, bool bitwise, const verify::Report& report);

// Counts of many reports.
struct KernelTally {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  double max_ratio_o = 0;
  double max_ratio_lse = 0;
  std::string worst_line;  // of max_ratio_o
};

struct Tally {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t refused = 0;
  double worst_ratio = 0;
  std::string worst_line;
  std::map<std::string, KernelTally> kernels;
  std::map<std::string, std::int64_t> refusals;  // by reason

  void count(const verify::Report& report);
  [[nodiscard]] int exit_code() const;
  // A row a kernel.
  [[nodiscard]] Table table() const;
};
// passed, failed, refused, seconds, worst_error_of_bound, worst_problem.
[[nodiscard]] nlohmann::ordered_json summary_json(const Tally& tally, double seconds);

}  // namespace attn::tool
