// Expected rows from the CPU backend in fp32. Contract: rows.hpp. Tested in tests/conformance/check_test.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/geometry.hpp"
#include "core/numeric.hpp"
#include "verify/rows.hpp"

namespace attn::verify {
namespace {

constexpr double kCpuU = 0x1p-22;  // u of rule 13 for fp32

// A compact fp32 copy of a view.
struct Copy {
  std::vector<float> values;
  TensorView view;

  Copy() = default;
  explicit Copy(const TensorView& from) : values(static_cast<std::size_t>(from.num_elements())) {
    const auto& n = from.shape;
    view = TensorView::bshd(values.data(), DType::kFloat32, n[0], n[1], n[2], n[3]);
    float* to = values.data();
    for (std::int64_t a = 0; a < n[0] && !values.empty(); ++a) {
      for (std::int64_t b = 0; b < n[1]; ++b) {
        for (std::int64_t c = 0; c < n[2]; ++c) {
          const std::int64_t at = a * from.strides[0] + b * from.strides[1] + c * from.strides[2];
          for (std::int64_t d = 0; d < n[3]; ++d) {
            *to++ = core::load_element(from.data, from.dtype, at + d);
          }
        }
      }
    }
  }
};

// Σ |a_c b_c|, in lanes that a compiler keeps in vectors.
float absolute_dot(const float* a, const float* b, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t n = 0;
  for (; n + kLanes <= count; n += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += std::fabs(a[n + l] * b[n + l]);
    }
  }
  float sum = 0;
  for (; n < count; ++n) {
    sum += std::fabs(a[n] * b[n]);
  }
  for (const float lane : lanes) {
    sum += lane;
  }
  return sum;
}

class CpuRows {
 public:
  CpuRows(const Problem& p, const Tensors& t)
      : problem_(p),
        q_(t.q),
        k_(t.k),
        v_(t.v),
        o_(static_cast<std::size_t>(t.o.num_elements())),
        tensors_(t) {
    problem_.dtype = DType::kFloat32;
    problem_.want_lse = true;
    problem_.num_splits = 1;
    tensors_.q = q_.view;
    tensors_.k = k_.view;
    tensors_.v = v_.view;
    const auto& n = t.o.shape;
    tensors_.o = TensorView::bshd(o_.data(), DType::kFloat32, n[0], n[1], n[2], n[3]);
    lse_.resize(static_cast<std::size_t>(n[0] * n[1] * n[2]));
    tensors_.lse = TensorView::lse(lse_.data(), n[0], n[2], n[1]);
    // max |V| of each row: NaN where it holds one.
    max_v_.reserve(v_.values.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, p.head_dim_v)));
    for (std::size_t at = 0; at < v_.values.size(); at += static_cast<std::size_t>(p.head_dim_v)) {
      float most = 0;
      for (std::size_t c = 0; c < static_cast<std::size_t>(p.head_dim_v); ++c) {
        const float x = std::fabs(v_.values[at + c]);
        most = x > most || std::isnan(x) ? x : most;
        if (std::isnan(x)) {
          break;
        }
      }
      max_v_.push_back(most);
    }
  }

  Status run() {
    PlanOptions options;
    options.backend = Backend::kCpu;
    options.threads = 1;
    Plan plan;
    if (Status status = make_plan(problem_, options, &plan); !status.ok()) {
      return status;
    }
    std::vector<std::byte> memory(plan.workspace_bytes() + 64);
    void* workspace = memory.data();
    std::size_t room = memory.size();
    workspace = std::align(64, plan.workspace_bytes(), workspace, room);
    return attn::run(plan, tensors_, workspace, plan.workspace_bytes());
  }

  // The row's O and bounds; false where the reference must say.
  bool row(const QueryRow& at, double* o, reference::Row* result, double* max_v) const {
    const Problem& p = problem_;
    const core::Sequence s = core::sequence_of(p, tensors_, at.b);
    const float* from = o_.data() + core::q_row_offset(tensors_.o, s, at.i, at.h);
    result->lse =
        static_cast<double>(lse_[static_cast<std::size_t>(core::lse_offset(tensors_.lse, s, at.i, at.h))]);
    const core::KeyRange keys = core::visible_keys(p, s, at.i);
    result->visible = keys.empty() ? 0 : keys.end - keys.begin;
    const bool sees = result->visible > 0;
    if (sees ? !std::isfinite(result->lse) : std::isnan(result->lse)) {
      return false;
    }
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
      o[c] = static_cast<double>(from[c]);
      if (!std::isfinite(from[c])) {
        return false;
      }
    }
    return !sees || bounds(at, s, keys, result, max_v);
  }

 private:
  bool bounds(const QueryRow& at, const core::Sequence& s, const core::KeyRange& keys, reference::Row* result,
              double* max_v) const {
    const Problem& p = problem_;
    const std::int64_t kv_head = at.h / (p.heads_q / p.heads_kv);
    const float* q = q_.values.data() + core::q_row_offset(q_.view, s, at.i, at.h);
    const double slope =
        p.alibi ? static_cast<double>(tensors_.alibi_slopes[at.b * tensors_.alibi_batch_stride + at.h]) : 0.0;
    float most = 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const std::int64_t v_at = core::kv_row_offset(p, tensors_, v_.view, s, j, kv_head);
      const float v = max_v_[static_cast<std::size_t>(v_at / p.head_dim_v)];
      if (!std::isfinite(v)) {
        return false;
      }
      most = std::max(most, v);
      const float* k = k_.values.data() + core::kv_row_offset(p, tensors_, k_.view, s, j, kv_head);
      const double magnitude =
          std::fabs(static_cast<double>(p.scale())) * static_cast<double>(absolute_dot(q, k, p.head_dim_qk)) +
          std::fabs(slope * static_cast<double>(j - at.i - s.off));
      result->logit_error = std::max(result->logit_error, magnitude);
    }
    result->max_abs_v = *max_v = static_cast<double>(most);
    return std::isfinite(result->logit_error);
  }

  Problem problem_;
  Copy q_;
  Copy k_;
  Copy v_;
  std::vector<float> o_;
  std::vector<float> lse_;
  std::vector<float> max_v_;
  Tensors tensors_;
};

}  // namespace

ExpectedRows expect_rows_by_cpu(const Problem& p, const Tensors& t, std::vector<QueryRow> rows) {
  if (p.seqlen_new > 0 || rows.empty()) {
    return expect_rows(p, t, std::move(rows));
  }
  CpuRows cpu(p, t);
  if (!cpu.run().ok()) {
    return expect_rows(p, t, std::move(rows));
  }
  ExpectedRows expected;
  expected.own_u = kCpuU;
  expected.rows = std::move(rows);
  const auto width = static_cast<std::size_t>(p.head_dim_v);
  expected.o.resize(expected.rows.size() * width);
  expected.results.resize(expected.rows.size());
  expected.max_v.resize(expected.rows.size());
  for (std::size_t n = 0; n < expected.rows.size(); ++n) {
    if (cpu.row(expected.rows[n], expected.o.data() + n * width, &expected.results[n], &expected.max_v[n])) {
      continue;
    }
    const ExpectedRows one = expect_rows(p, t, {expected.rows[n]});
    std::copy(one.o.begin(), one.o.end(), expected.o.begin() + static_cast<std::ptrdiff_t>(n * width));
    expected.results[n] = one.results[0];
    expected.max_v[n] = one.max_v[0];
  }
  return expected;
}

}  // namespace attn::verify
