// Choosing rows, and rule 13. Contract: rows.hpp.
#include "verify/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/geometry.hpp"
#include "core/numeric.hpp"
#include "verify/random.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kStreamRows = 104;
constexpr std::int64_t kTile = 64;        // every tile in use is a multiple or a divisor of it
constexpr double kMostOutputs = 1 << 24;  // values of O that are kept in float64: 128 MiB
constexpr double kLogitUlp = 0x1p-22;     // ε of rule 13 per unit of |scale| · Σ|q k|

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-12;
    case DType::kBFloat16:
      return 0x1p-9;
    case DType::kFloat32:
      break;
  }
  return 0x1p-22;
}

// Below so small a logarithm the weight of a key may be 0 in a backend: the least fp32 (bf16 too) and fp16
// weights are 2⁻¹²⁶ and 2⁻²⁴, and each is given a margin.
double lost_weight(DType dtype) {
  return dtype == DType::kFloat16 ? -15.0 : -80.0;
}

// Whether some visible key with an Inf in V weighs so little that 0 · Inf = NaN is right instead of Inf.
bool inf_may_be_nan(const Problem& p, const Tensors& t, const QueryRow& row, double lse) {
  if (p.rotary_dim > 0) {
    return true;  // the logits would have to be rotated first: not worth it here
  }
  const core::Sequence s = core::sequence_of(p, t, row.b);
  const std::int64_t kv_head = row.h / (p.heads_q / p.heads_kv);
  const core::KeyRange keys = core::visible_keys(p, s, row.i);
  const std::int64_t q_at = core::q_row_offset(t.q, s, row.i, row.h);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::int64_t v_at = core::kv_row_offset(p, t, t.v, s, j, kv_head);
    bool inf = false;
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
      inf = inf || std::isinf(core::load_element(t.v.data, p.dtype, v_at + c));
    }
    if (!inf) {
      continue;
    }
    const std::int64_t k_at = core::kv_row_offset(p, t, t.k, s, j, kv_head);
    double logit = 0;
    for (std::int64_t c = 0; c < p.head_dim_qk; ++c) {
      logit += static_cast<double>(core::load_element(t.q.data, p.dtype, q_at + c)) *
               static_cast<double>(core::load_element(t.k.data, p.dtype, k_at + c));
    }
    logit *= static_cast<double>(p.scale());
    if (p.softcap > 0) {
      logit = static_cast<double>(p.softcap) * std::tanh(logit / static_cast<double>(p.softcap));
    }
    if (p.alibi) {
      const auto slope = static_cast<double>(t.alibi_slopes[row.b * t.alibi_batch_stride + row.h]);
      logit += slope * static_cast<double>(j - row.i - s.off);
    }
    if (!(logit - lse > lost_weight(p.dtype))) {
      return true;
    }
  }
  return false;
}

double max_finite_v(const Problem& p, const Tensors& t, const QueryRow& row) {
  const core::Sequence s = core::sequence_of(p, t, row.b);
  const core::KeyRange keys = core::visible_keys(p, s, row.i);
  double result = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::int64_t at = core::kv_row_offset(p, t, t.v, s, j, row.h / (p.heads_q / p.heads_kv));
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
      const auto v = static_cast<double>(core::load_element(t.v.data, p.dtype, at + c));
      result = std::isfinite(v) ? std::max(result, std::abs(v)) : result;
    }
  }
  return result;
}

std::string place(const QueryRow& row) {
  return fmt::format("sequence {}, head {}, row {}", row.b, row.h, row.i);
}

// One row's comparison.
class RowJudge {
 public:
  RowJudge(const Problem& p, const Tensors& t, const ExpectedRows& expected, Report* report)
      : p_(p), t_(t), expected_(expected), report_(report) {}

  void judge(std::size_t n) {
    const QueryRow& row = expected_.rows[n];
    const core::Sequence s = core::sequence_of(p_, t_, row.b);
    judge_o(n, core::q_row_offset(t_.o, s, row.i, row.h));
    if (p_.want_lse) {
      judge_lse(n, core::lse_offset(t_.lse, s, row.i, row.h));
    }
    ++report_->rows_checked;
  }

 private:
  void fail(std::string text) {
    if (report_->failure.empty()) {
      report_->failure = std::move(text);
    }
  }

  // ε of the row; where its logits are not finite, that of finite data of the usual size.
  [[nodiscard]] double epsilon(const reference::Row& row) const {
    constexpr double kUsual = 1e4;
    return kLogitUlp * (std::isfinite(row.logit_error) ? row.logit_error : kUsual);
  }

  void judge_o(std::size_t n, std::int64_t at) {
    const QueryRow& row = expected_.rows[n];
    const reference::Row& result = expected_.results[n];
    const bool empty = std::isinf(result.lse) && result.lse < 0 && !p_.sinks;
    const double max_v = expected_.max_v[n];
    const double logits = (expected_.own_u > 0 ? 4 : 2) * epsilon(result);
    const double bound = empty ? 0.0 : (4 * (unit_roundoff(p_.dtype) + expected_.own_u) + logits) * max_v;
    for (std::int64_t c = 0; c < p_.head_dim_v; ++c) {
      const double want =
          expected_.o[n * static_cast<std::size_t>(p_.head_dim_v) + static_cast<std::size_t>(c)];
      const auto got = static_cast<double>(core::load_element(t_.o.data, p_.dtype, at + c));
      if (std::isfinite(want) && std::isfinite(got)) {
        note(std::abs(got - want), bound, &report_->max_error_o, &report_->max_ratio_o);
        if (!(std::abs(got - want) <= bound)) {
          fail(fmt::format("O at {}, channel {}: {:.9g}; expected {:.9g} within {:.3g}{}", place(row), c, got,
                           want, bound, empty ? " (an empty row is exactly 0)" : ""));
        }
        continue;
      }
      const bool overflow = std::isfinite(want) && std::abs(want) + bound > largest() && std::isinf(got) &&
                            std::signbit(want) == std::signbit(got);
      const bool same = std::isnan(want) ? std::isnan(got) : got == want;
      if (!same && !overflow &&
          !(std::isinf(want) && std::isnan(got) && inf_may_be_nan(p_, t_, row, result.lse))) {
        fail(fmt::format("O at {}, channel {}: {}; expected {}", place(row), c, got, want));
      }
    }
  }

  [[nodiscard]] double largest() const {
    return p_.dtype == DType::kFloat16 ? 65504.0 : static_cast<double>(std::numeric_limits<float>::max());
  }

  void judge_lse(std::size_t n, std::int64_t at) {
    const reference::Row& result = expected_.results[n];
    const auto got = static_cast<double>(core::load_element(t_.lse.data, DType::kFloat32, at));
    const double want = result.lse;
    if (std::isfinite(want) && std::isfinite(got)) {
      const double relative = 2e-6 * std::abs(want) + epsilon(result);
      const double bound = 1e-3 + (expected_.own_u > 0 ? 2 : 1) * relative;
      note(std::abs(got - want), bound, &report_->max_error_lse, &report_->max_ratio_lse);
      if (!(std::abs(got - want) <= bound)) {
        fail(fmt::format("LSE at {}: {:.9g}; expected {:.9g} within {:.3g}", place(expected_.rows[n]), got,
                         want, bound));
      }
      return;
    }
    if (std::isnan(want) ? !std::isnan(got) : got != want) {
      fail(fmt::format("LSE at {}: {}; expected {}", place(expected_.rows[n]), got, want));
    }
  }

  static void note(double error, double bound, double* max_error, double* max_ratio) {
    *max_error = std::max(*max_error, error);
    const double ratio = error == 0 ? 0.0 : error / bound;
    *max_ratio = std::max(*max_ratio, ratio);
  }

  const Problem& p_;
  const Tensors& t_;
  const ExpectedRows& expected_;
  Report* report_;
};

}  // namespace

std::vector<QueryRow> choose_rows(const Problem& p, const Tensors& t, const CheckOptions& options,
                                  std::uint64_t seed) {
  double scores = 0;
  double num_rows = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, t, b);
    scores +=
        static_cast<double>(s.seqlen_q) * static_cast<double>(s.seqlen_kv) * static_cast<double>(p.heads_q);
    num_rows += static_cast<double>(s.seqlen_q) * static_cast<double>(p.heads_q);
  }
  std::vector<QueryRow> rows;
  const bool all =
      scores <= options.max_scores && num_rows * static_cast<double>(p.head_dim_v) <= kMostOutputs;
  if (all) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t len = core::sequence_of(p, t, b).seqlen_q;
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        for (std::int64_t i = 0; i < len; ++i) {
          rows.push_back({b, h, i});
        }
      }
    }
    return rows;
  }
  // First and last rows of the first and last sequences and heads, and around 65536 of each; every tile edge
  // of one (sequence, head); and random rows.
  Draws draws(seed, kStreamRows);
  const auto add = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    if (b >= 0 && b < p.batch && h >= 0 && h < p.heads_q && i >= 0 &&
        i < core::sequence_of(p, t, b).seqlen_q) {
      rows.push_back({b, h, i});
    }
  };
  for (const std::int64_t b : {std::int64_t{0}, p.batch - 1, std::int64_t{65535}, std::int64_t{65536}}) {
    for (const std::int64_t h : {std::int64_t{0}, p.heads_q - 1, std::int64_t{65535}, std::int64_t{65536}}) {
      if (b >= 0 && b < p.batch) {
        add(b, h, 0);
        add(b, h, core::sequence_of(p, t, b).seqlen_q - 1);
      }
    }
  }
  const std::int64_t edge_b = draws.between(0, p.batch - 1);
  const std::int64_t edge_h = draws.between(0, p.heads_q - 1);
  const std::int64_t edge_len = core::sequence_of(p, t, edge_b).seqlen_q;
  const std::int64_t edge_step =
      std::max<std::int64_t>(1, edge_len / kTile / 2048) * kTile;  // at most 4096 rows
  for (std::int64_t i = edge_step; i < edge_len; i += edge_step) {
    add(edge_b, edge_h, i - 1);
    add(edge_b, edge_h, i);
  }
  for (std::int64_t n = 0; n < options.random_rows; ++n) {
    const std::int64_t b = draws.between(0, p.batch - 1);
    const std::int64_t len = core::sequence_of(p, t, b).seqlen_q;
    if (len > 0) {
      add(b, draws.between(0, p.heads_q - 1), draws.between(0, len - 1));
    }
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

ExpectedRows expect_rows(const Problem& p, const Tensors& t, std::vector<QueryRow> rows) {
  ExpectedRows expected;
  expected.rows = std::move(rows);
  expected.o.resize(expected.rows.size() * static_cast<std::size_t>(p.head_dim_v));
  for (std::size_t n = 0; n < expected.rows.size(); ++n) {
    const QueryRow& row = expected.rows[n];
    expected.results.push_back(reference::forward_row(
        p, t, row.b, row.h, row.i, expected.o.data() + n * static_cast<std::size_t>(p.head_dim_v)));
    const double max_v = expected.results.back().max_abs_v;
    expected.max_v.push_back(std::isfinite(max_v) ? max_v : max_finite_v(p, t, row));
  }
  return expected;
}

void compare_rows(const Problem& p, const Tensors& t, const ExpectedRows& expected, Report* report) {
  RowJudge judge(p, t, expected, report);
  for (std::size_t n = 0; n < expected.rows.size(); ++n) {
    judge.judge(n);
  }
}

}  // namespace attn::verify
