// How a call is cut into tasks and how many threads it is worth: pure functions of its sizes and of what the
// kernels take. No bit of a result depends on either. Tested in tests/unit/cpu_partition_test.cpp.
#pragma once

#include <cstdint>

#include "cpu/plan.hpp"

namespace attn::cpu {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) {
  return (n + d - 1) / d;
}

// The work of a call, in estimated microseconds of one thread.
struct Work {
  std::int64_t sequences = 1;   // the tasks there are at least: sequences × key/value heads × splits
  std::int64_t rows = 1;        // of the longest
  double mean_rows = 1;         // of each; the same as `rows` where they are alike
  std::int64_t task_rows = 1;   // at most, as the caches like it
  std::int64_t block_rows = 1;  // that go through the kernels together
  std::int64_t granule = 1;     // rows of a task are a multiple
  double task_us = 0;           // of a task, whatever its rows: K and V are packed, or read
  double row_us = 0;            // of a row, on average
  double longest_row_us = 0;    // of the one that sees most keys

  [[nodiscard]] bool alike() const { return mean_rows == static_cast<double>(rows); }
};

struct Partition {
  std::int64_t rows_per_task = 1;
  int threads = 1;  // that the call engages
  double us = 0;    // of one thread alone
};

// Of a plan whose kernels, tiles and splits are chosen.
[[nodiscard]] Work work_of(const Problem& problem, const CpuPlan& plan);

// The cut and the number of threads, `threads` at most, that end soonest; the fewest of those that take as
// many turns.
[[nodiscard]] Partition partition(const Work& work, int threads);

// How many threads equal tasks of so many microseconds are worth.
[[nodiscard]] int threads_worth(std::int64_t tasks, double task_us, int threads);

}  // namespace attn::cpu
