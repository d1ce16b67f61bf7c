// Rows of a problem with their float64 results, and the comparison of a backend's rows with them by rule 13.
// Used by judge.cpp. Tested in tests/conformance/check_test.cpp.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "reference/reference.hpp"
#include "verify/check.hpp"

namespace attn::verify {

struct QueryRow {
  std::int64_t b = 0;
  std::int64_t h = 0;
  std::int64_t i = 0;
  // clang-tidy 14 takes the 0 that it compares with for a pointer.
  friend auto operator<=>(const QueryRow&, const QueryRow&) = default;  // NOLINT(modernize-use-nullptr)
};

// All rows, or the contract's selection where there are more than max_scores scores.
[[nodiscard]] std::vector<QueryRow> choose_rows(const Problem& problem, const Tensors& tensors,
                                                const CheckOptions& options, std::uint64_t seed);

struct ExpectedRows {
  std::vector<QueryRow> rows;
  std::vector<reference::Row> results;
  std::vector<double> o;      // rows × head_dim_v
  std::vector<double> max_v;  // max |V| over the row's visible keys, infinities left out
  // What judged these rows has an error of its own, which is added to the bound: its u of rule 13 (0:
  // float64).
  double own_u = 0;
};

// `tensors` holds the caches as they are after an append.
[[nodiscard]] ExpectedRows expect_rows(const Problem& problem, const Tensors& tensors,
                                       std::vector<QueryRow> rows);

// The same from the CPU backend, which computes the problem in fp32 on the same rounded inputs, on this
// thread: many times as quick. Rows that it leaves NaN, infinite or empty though they see keys are the
// reference's, and so is a problem with an append.
[[nodiscard]] ExpectedRows expect_rows_by_cpu(const Problem& problem, const Tensors& tensors,
                                              std::vector<QueryRow> rows);

// Compares tensors.o and tensors.lse at the rows; fills the errors, rows_checked and the first failure.
void compare_rows(const Problem& problem, const Tensors& tensors, const ExpectedRows& expected,
                  Report* report);

}  // namespace attn::verify
