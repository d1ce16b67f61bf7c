// See finish.hpp.
#include "cpu/finish.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/numeric.hpp"

namespace attn::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The denominator of O, in units of 2^max, and the LSE where it is wanted.
struct Closing {
  double divisor = 1;
  double lse = -kInfinity;
  bool empty = false;  // O is exactly 0
};

// sink: the plain logit of the head, −inf where there is none.
Closing close_row(const RowState& row, double sink, bool lse_with_sink, bool want_lse) {
  const double max = row.max;
  const double sum = static_cast<double>(row.sum) + row.sum_low;
  // Nothing visible, or nothing but −inf. A NaN logit leaves a NaN sum, whatever the maximum.
  const bool nothing = row.max == -std::numeric_limits<float>::infinity() && sum == 0.0;
  const bool endless = sink == kInfinity;
  if (std::isnan(sink) || (endless && lse_with_sink)) {
    return {kNan, kNan, false};
  }
  Closing closing;
  if (nothing) {
    if (sink != -kInfinity) {
      closing.divisor = endless ? kNan : kInfinity;
      closing.lse = lse_with_sink ? sink : -kInfinity;
    } else {
      closing.empty = true;
    }
    return closing;
  }
  const double sink_log2 = (sink - row.shift) * std::numbers::log2e;
  closing.divisor = endless ? kNan : sink == -kInfinity ? sum : sum + std::exp2(sink_log2 - max);
  if (!want_lse) {
    return closing;
  }
  double log2_sum = max + std::log2(sum);
  if (lse_with_sink && sink != -kInfinity) {
    const double top = std::max(max, sink_log2);
    log2_sum = top + std::log2(sum * std::exp2(max - top) + std::exp2(sink_log2 - top));
  }
  closing.lse = log2_sum * std::numbers::ln2 + row.shift;
  closing.lse = std::isnan(closing.lse) ? kNan : closing.lse;  // one sign, as in store_row
  return closing;
}

}  // namespace

RowState begin_row(const RunContext& context, const core::Sequence& s, std::int64_t kv_head, std::int64_t r) {
  const Problem& p = context.problem;
  const PackedRow row_of = unpack_row(context.plan.group, r);
  const std::int64_t i = row_of.query;
  const std::int64_t h = kv_head * context.plan.group + row_of.in_group;
  const core::KeyRange range = core::visible_keys(p, s, i);
  RowState row;
  // A row that sees nothing keeps a place in the order: both bounds never fall from a query to the next.
  row.visible_begin = std::min(range.begin, range.end);
  row.visible_end = range.end;
  row.max = -std::numeric_limits<float>::infinity();
  if (p.alibi) {
    const double slope =
        static_cast<double>(context.tensors.alibi_slopes[s.batch * context.tensors.alibi_batch_stride + h]);
    row.slope_log2 = static_cast<float>(slope * std::numbers::log2e);
    if (!range.empty()) {
      row.reference_key = slope > 0 ? range.end - 1 : range.begin;
      row.shift = slope * static_cast<double>(row.reference_key - i - s.off);
    }
  }
  return row;
}

void finish_row(const RunContext& context, const core::Sequence& s, std::int64_t kv_head, std::int64_t r,
                const RowState& row, const float* o, const float* o_low) {
  const Problem& p = context.problem;
  const Tensors& t = context.tensors;
  const PackedRow row_of = unpack_row(context.plan.group, r);
  const std::int64_t i = row_of.query;
  const std::int64_t h = kv_head * context.plan.group + row_of.in_group;
  const Closing closing = close_row(row, p.sinks ? t.sinks[h] : -kInfinity, p.lse_with_sink, p.want_lse);
  char* out = static_cast<char*>(t.o.data) +
              core::q_row_offset(t.o, s, i, h) * static_cast<std::int64_t>(size_of(p.dtype));
  if (closing.empty) {
    // Zeros in every dtype. Not o, which holds 0 · v of keys whose logits are −inf.
    std::fill_n(out, static_cast<std::size_t>(p.head_dim_v) * size_of(p.dtype), char{0});
  } else {
    context.plan.kernels->store_row(o, o_low, static_cast<float>(closing.divisor),
                                    static_cast<int>(p.head_dim_v), p.dtype, out);
  }
  if (p.want_lse) {
    core::store_element(t.lse.data, DType::kFloat32, core::lse_offset(t.lse, s, i, h),
                        static_cast<float>(closing.lse));
  }
}

void store_partial(const RunContext& context, const RowState& row, const float* o, const float* o_low,
                   float* partial) {
  const int dim = static_cast<int>(context.problem.head_dim_v);
  context.plan.kernels->store_row(o, o_low, 1.0F, dim, DType::kFloat32, partial);
  partial[dim] = row.max;
  partial[dim + 1] = row.sum + row.sum_low;
}

float* partials_of(const RunContext& context, const core::Sequence& s, std::int64_t kv_head, std::int64_t r) {
  const std::int64_t row = partial_row_base(context.plan, context.problem, s, kv_head) + r;
  return reinterpret_cast<float*>(context.workspace + context.plan.partials_offset) +
         row * context.plan.num_splits * (context.problem.head_dim_v + 2);
}

void combine_rows(const RunContext& context, const core::Sequence& s, std::int64_t kv_head,
                  std::int64_t row_begin, std::int64_t row_end, std::int64_t count, float* o, float* o_low) {
  const std::int64_t dim = context.problem.head_dim_v;
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const float* partials = partials_of(context, s, kv_head, r);
    RowState row = begin_row(context, s, kv_head, r);
    for (std::int64_t n = 0; n < count; ++n) {
      const float max = partials[n * (dim + 2) + dim];
      row.max = max > row.max ? max : row.max;
    }
    // Nothing but −inf: subtract 0, so that −inf − −inf does not make NaN.
    const double top = row.max == -std::numeric_limits<float>::infinity() ? 0.0 : row.max;
    std::fill_n(o, dim, 0.0F);
    std::fill_n(o_low, dim, 0.0F);
    double sum = 0;
    for (std::int64_t n = 0; n < count; ++n) {
      const float* partial = partials + n * (dim + 2);
      const double weight = std::exp2(partial[dim] - top);
      const float factor = static_cast<float>(weight);
      sum += weight * partial[dim + 1];
      for (std::int64_t c = 0; c < dim; ++c) {
        const float add = factor * partial[c];
        const float after = o[c] + add;
        o_low[c] += add - (after - o[c]);
        o[c] = after;
      }
    }
    row.sum = static_cast<float>(sum);
    row.sum_low = std::isfinite(sum) ? static_cast<float>(sum - row.sum) : 0.0F;
    finish_row(context, s, kv_head, r, row, o, o_low);
  }
}

}  // namespace attn::cpu
