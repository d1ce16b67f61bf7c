// The direct path for few query rows (decode): K and V rows are read once, in place, converted in registers.
// Packing would cost more than the arithmetic there. Tested in tests/unit/cpu_kernels_test.cpp.
#include "cpu/hwy_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/direct.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/convert-inl.h"
#include "cpu/kernels.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using V = hn::VFromD<D>;
constexpr size_t kLanes = HWY_LANES(float);
// Accumulators that leave room for operands: half of the registers (32 on AVX-512 and A64, else 16).
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kAccumulators = 16;
#else
constexpr int kAccumulators = 8;
#endif

// Keys whose dot products are reduced together.
constexpr int kGroup = 4;

// Rows asked for ahead of their use. With the heads of a key side by side in memory, a head's rows lie pages
// apart, where hardware prefetching does not follow; 32 rows of 256 to 512 bytes cover some 100 ns at the
// bandwidth of a core.
constexpr size_t kAhead = 32;

// The sum of a vector's 128-bit blocks, to out[0 … 3].
#if HWY_TARGET != HWY_SCALAR
template <class D2, class V2>
HWY_INLINE void StoreBlockSum(D2 d, V2 v, float* out) {
  if constexpr (hn::MaxLanes(D2()) == 4) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D2> half;
    StoreBlockSum(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), out);
  }
}
#endif

// The sums of the lanes of four vectors, to out[0 … 3].
HWY_INLINE void StoreSums(D d, V a, V b, V c, V e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
#else
  const hn::RepartitionToWide<D> d64;
  const V ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto ce64 = hn::BitCast(d64, ce);
  const V blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab64, ce64)),
                           hn::BitCast(d, hn::InterleaveUpper(d64, ab64, ce64)));
  StoreBlockSum(d, blocks, out);
#endif
}

// What is the same for all keys of a call.
template <int kRows>
struct DirectQuery {
  const float* q;
  size_t stride;
  size_t dim;
  V tail[kRows];  // the last dim % kLanes channels, in the last lanes (only where dim > kLanes)
};

// Steps of one chain of additions; longer rows are summed up from several, and kSums of those side by side
// where vectors are so short that chains are many (gemm.cc says why).
constexpr size_t kChainSteps = 16;
constexpr size_t kSums = kLanes < 4 ? 4 : 1;

// acc[key][row] of kKeys keys: lane-wise products, not yet summed over the lanes.
template <class T, int kRows, int kKeys>
HWY_INLINE void DotKeys(const DirectQuery<kRows>& query, const T* const* k, V* HWY_RESTRICT acc) {
  const D d;
  const size_t dim = query.dim;
  V c[kKeys][kRows];
#pragma GCC unroll 4
  for (int key = 0; key < kKeys; ++key) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      c[key][r] = hn::Zero(d);
    }
  }
  size_t i = 0;
  size_t chain_end = kChainSteps * kLanes;
  V sums[kSums][kKeys * kRows];
  size_t chains = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    if (HWY_UNLIKELY(i == chain_end)) {
#pragma GCC unroll 4
      for (int key = 0; key < kKeys; ++key) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          V& sum = sums[chains % kSums][key * kRows + r];
          sum = chains >= kSums ? hn::Add(sum, c[key][r]) : c[key][r];
          c[key][r] = hn::Zero(d);
        }
      }
      ++chains;
      chain_end += kChainSteps * kLanes;
    }
    V q[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      q[r] = hn::Load(d, query.q + r * query.stride + i);
    }
#pragma GCC unroll 4
    for (int key = 0; key < kKeys; ++key) {
      const V x = LoadFloat(d, k[key] + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        c[key][r] = hn::MulAdd(x, q[r], c[key][r]);
      }
    }
  }
  if (i < dim) {
    const size_t n = dim - i;
    const auto mask = hn::Not(hn::FirstN(d, kLanes - n));
#pragma GCC unroll 4
    for (int key = 0; key < kKeys; ++key) {
      // The last whole vector of the row, without the channels that were counted before.
      const V x =
          i > 0 ? hn::IfThenElseZero(mask, LoadFloat(d, k[key] + dim - kLanes)) : LoadFloatN(d, k[key], n);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        c[key][r] = hn::MulAdd(x, i > 0 ? query.tail[r] : hn::Load(d, query.q + r * query.stride), c[key][r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int key = 0; key < kKeys; ++key) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      V sum = c[key][r];
      for (size_t n = 0; n < HWY_MIN(chains, kSums); ++n) {
        sum = hn::Add(sum, sums[n][key * kRows + r]);
      }
      acc[key * kRows + r] = sum;
    }
  }
}

template <class T, int kRows>
HWY_NOINLINE void ScoresRows(const float* q, size_t q_stride, size_t dim, const void* const* k_rows,
                             size_t begin, size_t end, float factor, float* s) {
  const D d;
  constexpr int kAtOnce = kRows * kGroup <= kAccumulators ? kGroup : kGroup / 2;
  DirectQuery<kRows> query{q, q_stride, dim, {}};
  const size_t n = dim % kLanes;
  for (int r = 0; r < kRows; ++r) {
    query.tail[r] = hn::Zero(d);
    if (n > 0 && dim > kLanes) {
      HWY_ALIGN float tail[kLanes] = {};
      for (size_t i = 0; i < n; ++i) {
        tail[kLanes - n + i] = q[static_cast<size_t>(r) * q_stride + dim - n + i];
      }
      query.tail[r] = hn::Load(d, tail);
    }
  }
  for (size_t key = begin; key < end; key += kGroup) {
    for (size_t next = key + kAhead; next < HWY_MIN(key + kAhead + kGroup, end); ++next) {
      PrefetchRow<T>(k_rows[next], dim);
    }
    // A last group that is not full repeats its last key; the surplus sums are not stored.
    const T* k[kGroup];
    for (size_t g = 0; g < kGroup; ++g) {
      k[g] = static_cast<const T*>(k_rows[HWY_MIN(key + g, end - 1)]);
    }
    V acc[kGroup * kRows];
#pragma GCC unroll 2
    for (int g = 0; g < kGroup; g += kAtOnce) {
      DotKeys<T, kRows, kAtOnce>(query, k + g, acc + g * kRows);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      float sums[kGroup];
      StoreSums(d, acc[r], acc[kRows + r], acc[2 * kRows + r], acc[3 * kRows + r], sums);
      for (size_t g = 0; g < kGroup && key + g < end; ++g) {
        s[static_cast<size_t>(r) * kScoreStride + key + g] = sums[g] * factor;
      }
    }
  }
}

template <class T>
void ScoresDirectOf(const float* q, int rows, size_t q_stride, size_t dim, const void* const* k_rows,
                    size_t begin, size_t end, float factor, float* s) {
  switch (rows) {
    case 1:
      ScoresRows<T, 1>(q, q_stride, dim, k_rows, begin, end, factor, s);
      break;
    case 2:
      ScoresRows<T, 2>(q, q_stride, dim, k_rows, begin, end, factor, s);
      break;
    case 3:
      ScoresRows<T, 3>(q, q_stride, dim, k_rows, begin, end, factor, s);
      break;
    default:
      ScoresRows<T, 4>(q, q_stride, dim, k_rows, begin, end, factor, s);
      break;
  }
}

void ScoresDirect(const float* q, int rows, int q_stride, int dim, const void* const* k_rows, int begin,
                  int end, DType dtype, float factor, float* s) {
  const size_t stride = static_cast<size_t>(q_stride);
  const size_t channels = static_cast<size_t>(dim);
  const size_t from = static_cast<size_t>(begin);
  const size_t to = static_cast<size_t>(end);
  switch (dtype) {
    case DType::kFloat32:
      ScoresDirectOf<float>(q, rows, stride, channels, k_rows, from, to, factor, s);
      break;
    case DType::kFloat16:
      ScoresDirectOf<Fp16>(q, rows, stride, channels, k_rows, from, to, factor, s);
      break;
    case DType::kBFloat16:
      ScoresDirectOf<Bf16>(q, rows, stride, channels, k_rows, from, to, factor, s);
      break;
  }
}

// As in gemm.cc, on part of the lanes: the others keep their value.
template <class M>
HWY_INLINE void AddCompensated(D d, M mask, float rescale, V x, float* o, float* low) {
  const V factor = hn::IfThenElse(mask, hn::Set(d, rescale), hn::Set(d, 1.0F));
  const V before = hn::Mul(hn::LoadU(d, o), factor);
  const V lost_before = hn::Mul(hn::LoadU(d, low), factor);
  const V added = hn::IfThenElseZero(mask, x);
  const V after = hn::Add(before, added);
  const V lost = hn::Sub(added, hn::Sub(after, before));
  hn::StoreU(after, d, o);
  hn::StoreU(hn::Add(lost_before, lost), d, low);
}

// kVectors vectors of columns from `column` on, of which the lanes of `mask` are added. With kPartial there
// are only `count` < kLanes columns in all.
template <class T, int kRows, int kVectors, bool kPartial, class M>
HWY_INLINE void AccumulateColumns(const Accumulation& acc, const void* const* v_rows, size_t column, M mask,
                                  size_t count, size_t dim) {
  const D d;
  const size_t end = static_cast<size_t>(acc.end);
  V sums[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int w = 0; w < kVectors; ++w) {
      sums[r][w] = hn::Zero(d);
    }
  }
  for (size_t begin = static_cast<size_t>(acc.begin); begin < end;) {
    const size_t stop = HWY_MIN((begin / kKeyChain + 1) * kKeyChain, end);
    V c[kRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int w = 0; w < kVectors; ++w) {
        c[r][w] = hn::Zero(d);
      }
    }
    for (size_t key = begin; key < stop; ++key) {
      if (kAhead < end - key && column == 0) {
        PrefetchRow<T>(v_rows[key + kAhead], dim);
      }
      const T* v = static_cast<const T*>(v_rows[key]) + column;
      V p[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        p[r] = hn::Set(d, acc.p[r * kScoreStride + static_cast<int>(key)]);
      }
#pragma GCC unroll 16
      for (int w = 0; w < kVectors; ++w) {
        const V x = kPartial ? LoadFloatN(d, v, count) : LoadFloat(d, v + static_cast<size_t>(w) * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          c[r][w] = hn::MulAdd(p[r], x, c[r][w]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int w = 0; w < kVectors; ++w) {
        sums[r][w] = hn::Add(sums[r][w], c[r][w]);
      }
    }
    begin = stop;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int w = 0; w < kVectors; ++w) {
      const size_t at = static_cast<size_t>(r) * static_cast<size_t>(acc.o_stride) + column +
                        static_cast<size_t>(w) * kLanes;
      AddCompensated(d, mask, acc.rescale[r], sums[r][w], acc.o + at, acc.o_low + at);
    }
  }
}

template <class T, int kRows>
HWY_NOINLINE void AccumulateRows(const Accumulation& acc, const void* const* v_rows, size_t dim) {
  const D d;
  constexpr int kWide = HWY_MIN(kAccumulators / (kRows == 3 ? 4 : kRows), 8);
  constexpr int kMedium = kWide == 8 ? 4 : 1;
  const auto all = hn::FirstN(d, kLanes);
  size_t column = 0;
  for (int key = acc.begin; key < HWY_MIN(acc.begin + static_cast<int>(kAhead), acc.end); ++key) {
    PrefetchRow<T>(v_rows[key], dim);
  }
  for (; column + kWide * kLanes <= dim; column += kWide * kLanes) {
    AccumulateColumns<T, kRows, kWide, false>(acc, v_rows, column, all, kLanes, dim);
  }
  if (kMedium > 1 && column + kMedium * kLanes <= dim) {
    AccumulateColumns<T, kRows, kMedium, false>(acc, v_rows, column, all, kLanes, dim);
    column += kMedium * kLanes;
  }
  for (; column + kLanes <= dim; column += kLanes) {
    AccumulateColumns<T, kRows, 1, false>(acc, v_rows, column, all, kLanes, dim);
  }
  const size_t n = dim - column;
  if (n > 0 && column > 0) {
    AccumulateColumns<T, kRows, 1, false>(acc, v_rows, dim - kLanes, hn::Not(hn::FirstN(d, kLanes - n)), n,
                                          dim);
  } else if (n > 0) {
    AccumulateColumns<T, kRows, 1, true>(acc, v_rows, 0, hn::FirstN(d, n), n, dim);
  }
}

template <class T>
void AccumulateDirectOf(const Accumulation& acc, const void* const* v_rows, size_t dim) {
  switch (acc.rows) {
    case 1:
      AccumulateRows<T, 1>(acc, v_rows, dim);
      break;
    case 2:
      AccumulateRows<T, 2>(acc, v_rows, dim);
      break;
    case 3:
      AccumulateRows<T, 3>(acc, v_rows, dim);
      break;
    default:
      AccumulateRows<T, 4>(acc, v_rows, dim);
      break;
  }
}

void AccumulateDirect(const Accumulation& acc, const void* const* v_rows, int dim, DType dtype) {
  const size_t channels = static_cast<size_t>(dim);
  switch (dtype) {
    case DType::kFloat32:
      AccumulateDirectOf<float>(acc, v_rows, channels);
      break;
    case DType::kFloat16:
      AccumulateDirectOf<Fp16>(acc, v_rows, channels);
      break;
    case DType::kBFloat16:
      AccumulateDirectOf<Bf16>(acc, v_rows, channels);
      break;
  }
}

void Fill(KernelTable* table) {
  table->scores_direct = &ScoresDirect;
  table->accumulate_direct = &AccumulateDirect;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/fill_targets.hpp"

namespace attn::cpu {

void fill_direct_kernels(std::int64_t target, KernelTable* table) {
  ATTN_CPU_FILL(target, table);
}

}  // namespace attn::cpu
#endif
