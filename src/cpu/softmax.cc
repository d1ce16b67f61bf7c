// One step of the online softmax for a block of rows, in the log2 domain, and what turns scores into logits
// where that is more than a factor (softcap, ALiBi). Tested in tests/unit/cpu_kernels_test.cpp.
#include "cpu/hwy_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/kernels.hpp"
#include "cpu/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using V = hn::VFromD<D>;
constexpr size_t kLanes = HWY_LANES(float);
constexpr float kMinusInfinity = -__builtin_inff();

// s holds scale · q·k where there is a softcap, log2(e) · scale · q·k where there is none.
void Transform(float* s, int rows, int begin, int end, const LogitTransform& t) {
  const D d;
  const V log2_e = hn::Set(d, 1.44269504F);
  const V cap = hn::Set(d, t.softcap);
  for (int r = 0; r < rows; ++r) {
    float* row = s + r * kScoreStride;
    const V slope = hn::Set(d, t.slope_log2 != nullptr ? t.slope_log2[r] : 0.0F);
    const V distance = hn::Set(d, t.slope_log2 != nullptr ? t.distance[r] : 0.0F);
    for (int j = begin; j < end; j += static_cast<int>(kLanes)) {
      V x = hn::Load(d, row + j);
      if (t.softcap > 0.0F) {
        x = hn::Mul(hn::Mul(Tanh(d, hn::Div(x, cap)), cap), log2_e);
      }
      if (t.slope_log2 != nullptr) {
        const V position = hn::Add(distance, hn::Iota(d, static_cast<float>(j)));
        x = hn::MulAdd(slope, position, x);
      }
      hn::Store(x, d, row + j);
    }
  }
}

// Max may drop a NaN. That is harmless: the NaN score itself still turns its own probability, and with it
// the row's sum and output, into NaN.
HWY_INLINE float RowMax(D d, const float* row, int begin, int end) {
  V m0 = hn::Set(d, kMinusInfinity);
  V m1 = m0;
  for (int j = begin; j < end; j += static_cast<int>(2 * kLanes)) {
    m0 = hn::Max(m0, hn::Load(d, row + j));
    m1 = hn::Max(m1, hn::Load(d, row + j + kLanes));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
}

// Scores to probabilities; returns their sum. Which partial sum a key goes to depends on its place in the
// tile alone, so that begin and end do not change a bit of the result.
HWY_INLINE float RowExp(D d, float* row, int begin, int end, float row_max) {
  const V m = hn::Set(d, row_max);
  V sum0 = hn::Zero(d);
  V sum1 = hn::Zero(d);
  for (int j = begin; j < end; j += static_cast<int>(2 * kLanes)) {
    const V p0 = Exp2(d, hn::Sub(hn::Load(d, row + j), m));
    const V p1 = Exp2(d, hn::Sub(hn::Load(d, row + j + kLanes), m));
    hn::Store(p0, d, row + j);
    hn::Store(p1, d, row + j + kLanes);
    sum0 = hn::Add(sum0, p0);
    sum1 = hn::Add(sum1, p1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

void Softmax(const SoftmaxBlock& block) {
  const D d;
  HWY_ALIGN float before[kMaxBlockRows] = {};
  HWY_ALIGN float subtract[kMaxBlockRows] = {};
  for (int r = 0; r < block.rows; ++r) {
    const float tile_max = RowMax(d, block.s + r * kScoreStride, block.begin, block.end);
    before[r] = block.row_max[r];
    const float row_max = tile_max > before[r] ? tile_max : before[r];
    block.row_max[r] = row_max;
    // Nothing but −inf so far: subtract 0, so that −inf − −inf does not make NaN.
    subtract[r] = row_max == kMinusInfinity ? 0.0F : row_max;
  }
  for (size_t r = 0; r < static_cast<size_t>(block.rows); r += kLanes) {
    const V difference = hn::Sub(hn::Load(d, before + r), hn::Load(d, subtract + r));
    hn::StoreU(Exp2(d, difference), d, block.rescale + r);
  }
  for (int r = 0; r < block.rows; ++r) {
    const float tile_sum = RowExp(d, block.s + r * kScoreStride, block.begin, block.end, subtract[r]);
    const float sum = block.row_sum[r] * block.rescale[r];
    const float total = sum + tile_sum;
    block.row_sum_low[r] = block.row_sum_low[r] * block.rescale[r] + (tile_sum - (total - sum));
    block.row_sum[r] = total;
  }
}

float Probability(const float* p, int row, int key) {
  return p[row * kScoreStride + key];
}

void Fill(KernelTable* table) {
  table->probability = &Probability;
  table->transform = &Transform;
  table->softmax = &Softmax;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/fill_targets.hpp"

namespace attn::cpu {

void fill_softmax_kernels(std::int64_t target, KernelTable* table) {
  ATTN_CPU_FILL(target, table);
}

}  // namespace attn::cpu
#endif
