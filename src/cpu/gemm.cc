// The two matrix products of a tile, register tiled: S = factor · Q·Kᵀ and O = rescale · O + P·V, in fp32.
//
// A register tile is block_rows × two vectors of accumulators. Each step loads two vectors of the packed
// panel and broadcasts one element a row: on AVX-512, 14 rows × 2 vectors take 28 accumulators + 2 + 1 of 32
// registers and 16 loads for 28 FMAs, so that the two FMA ports and not the two load ports are the limit.
// Tested in tests/unit/cpu_kernels_test.cpp on every level.
#include "cpu/hwy_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
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
constexpr size_t kPanelKeys = 2 * kLanes;

// Rows of the register tile: accumulators (2 a row) + 2 panel vectors + 1 broadcast within the registers.
#if HWY_TARGET == HWY_AVX3
constexpr int kBlockRows = 14;  // 31 of 32
#elif HWY_TARGET == HWY_AVX2
constexpr int kBlockRows = 6;  // 15 of 16
#elif HWY_ARCH_ARM_A64
constexpr int kBlockRows = 12;  // 27 of 32
#else
constexpr int kBlockRows = 4;  // 16 registers, and one more for the product where there is no FMA
#endif
static_assert(kBlockRows <= kMaxBlockRows);

// Q·K is summed up from chains of so many channels (see kKeyChain), which a sum adds up one after another;
// rows beyond kLongRow in several sums, added up last. All additions of like terms may round in one direction:
// by n/2 · 2⁻²⁴ in a chain of n, and as much in a sum of n chains. Chains of 32 reach 1.3 of the bound at any
// head dim, on keys that drift apart (docs/performance.md).
constexpr size_t kChannelChain = 16;
constexpr size_t kLongRow = 64;
constexpr size_t kLongRowSums = 4;

// What is stored stays where it is. Without it GCC carries a block's partial sums from one chain to the next
// in registers that it does not have: 56 moves to and from the stack a chain, 15 % of the kernel.
HWY_INLINE void KeepInMemory() {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm volatile("" ::: "memory");
#endif
}

// Two vectors of a panel, ahead of their use: a tile of keys lies in the second-level cache.
HWY_INLINE void PrefetchPanel(const float* panel) {
  constexpr size_t kAhead = 16;  // steps
  __builtin_prefetch(panel + kAhead * kPanelKeys);
  if constexpr (kPanelKeys * sizeof(float) > 64) {
    __builtin_prefetch(panel + kAhead * kPanelKeys + 64 / sizeof(float));
  }
}

template <int kRows, size_t kSums>
HWY_NOINLINE void ScoresBlock(const float* HWY_RESTRICT q, size_t dim, const float* HWY_RESTRICT panels,
                              size_t panel_begin, size_t panel_end, float factor, float* HWY_RESTRICT s) {
  const D d;
  const V by = hn::Set(d, factor);
  // The sums so far. One has its place in S: in memory of its own as well, d 64 takes 1.6 % longer on avx3.
  constexpr size_t kStride = kSums == 1 ? kScoreStride : kPanelKeys;
  HWY_ALIGN float several[kSums == 1 ? 1 : kSums * kRows * kPanelKeys];
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    const float* HWY_RESTRICT k = panels + panel * dim * kPanelKeys;
    float* HWY_RESTRICT out = s + panel * kPanelKeys;
    const float* HWY_RESTRICT a = q;
    size_t chain = 0;
    for (size_t begin = 0; begin < dim; begin += kChannelChain, ++chain) {
      const size_t end = HWY_MIN(begin + kChannelChain, dim);
      KeepInMemory();
      V c0[kRows];
      V c1[kRows];
      const auto add = [&](const float* HWY_RESTRICT sum) HWY_ATTR {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          c0[r] = hn::Add(c0[r], hn::Load(d, sum + r * kStride));
          c1[r] = hn::Add(c1[r], hn::Load(d, sum + r * kStride + kLanes));
        }
      };
      const auto store = [&](float* HWY_RESTRICT sum, size_t stride) HWY_ATTR {
#pragma GCC unroll 16
        for (size_t r = 0; r < kRows; ++r) {
          hn::Store(c0[r], d, sum + r * stride);
          hn::Store(c1[r], d, sum + r * stride + kLanes);
        }
      };
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        c0[r] = hn::Zero(d);
        c1[r] = hn::Zero(d);
      }
#pragma GCC unroll 2
      for (size_t c = begin; c < end; ++c) {
        PrefetchPanel(k);
        const V k0 = hn::Load(d, k);
        const V k1 = hn::Load(d, k + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const V x = hn::Set(d, a[r]);
          c0[r] = hn::MulAdd(x, k0, c0[r]);
          c1[r] = hn::MulAdd(x, k1, c1[r]);
        }
        k += kPanelKeys;
        a += kRows;
      }
      const size_t which = chain % kSums;
      float* HWY_RESTRICT own = kSums == 1 ? out : several + which * (kRows * kPanelKeys);
      if (chain >= kSums) {
        add(own);
      }
      if (end < dim) {
        store(own, kStride);
        continue;
      }
      for (size_t other = 0; other < HWY_MIN(chain + 1, kSums); ++other) {
        if (other != which) {
          add(several + other * (kRows * kPanelKeys));
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        c0[r] = hn::Mul(c0[r], by);
        c1[r] = hn::Mul(c1[r], by);
      }
      store(out, kScoreStride);
    }
  }
}

// o (with what rounding has lost from it in low) ← rescale · o + x, by FastTwoSum: exact where |o| ≥ |x|,
// never worse than a plain sum. o itself is the plain sum, so that infinities stay what they are.
HWY_INLINE void AddCompensated(D d, V rescale, V x, float* HWY_RESTRICT o, float* HWY_RESTRICT low) {
  const V before = hn::Mul(hn::Load(d, o), rescale);
  const V lost_before = hn::Mul(hn::Load(d, low), rescale);
  const V after = hn::Add(before, x);
  const V lost = hn::Sub(x, hn::Sub(after, before));
  hn::Store(after, d, o);
  hn::Store(hn::Add(lost_before, lost), d, low);
}

// One column panel of kVectors vectors: panel is [key][column]. sums: scratch for the chains so far.
template <int kRows, int kVectors>
HWY_NOINLINE void AccumulatePanel(const Accumulation& acc, const float* HWY_RESTRICT panel, size_t column,
                                  float* HWY_RESTRICT sums) {
  const D d;
  constexpr size_t kWidth = kVectors * kLanes;
  const size_t end = static_cast<size_t>(acc.end);
  const size_t stride = static_cast<size_t>(acc.o_stride);
  // O of a task lies in the second-level cache; it is wanted at the end.
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t at = 0; at < kWidth; at += 64 / sizeof(float)) {
      __builtin_prefetch(acc.o + r * stride + column + at, 1);
      __builtin_prefetch(acc.o_low + r * stride + column + at, 1);
    }
  }
  // Chains end at fixed places of the tile, so that begin and end do not change a bit of the sum.
  size_t stop = 0;
  for (size_t begin = static_cast<size_t>(acc.begin); begin < end; begin = stop) {
    stop = HWY_MIN((begin / kKeyChain + 1) * kKeyChain, end);
    const float* HWY_RESTRICT v = panel + begin * kWidth;
    const float* HWY_RESTRICT p = acc.p + begin;
    KeepInMemory();
    V c[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int w = 0; w < kVectors; ++w) {
        c[r][w] = hn::Zero(d);
      }
    }
#pragma GCC unroll 2
    for (size_t key = begin; key < stop; ++key) {
      V b[kVectors];
#pragma GCC unroll 2
      for (int w = 0; w < kVectors; ++w) {
        b[w] = hn::Load(d, v + w * kLanes);
      }
      PrefetchPanel(v);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, p[r * kScoreStride]);
#pragma GCC unroll 2
        for (int w = 0; w < kVectors; ++w) {
          c[r][w] = hn::MulAdd(x, b[w], c[r][w]);
        }
      }
      v += kWidth;
      ++p;
    }
    if (begin > static_cast<size_t>(acc.begin)) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int w = 0; w < kVectors; ++w) {
          c[r][w] = hn::Add(c[r][w], hn::Load(d, sums + r * kWidth + w * kLanes));
        }
      }
    }
    if (stop < end) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int w = 0; w < kVectors; ++w) {
          hn::Store(c[r][w], d, sums + r * kWidth + w * kLanes);
        }
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V rescale = hn::Set(d, acc.rescale[r]);
#pragma GCC unroll 2
        for (int w = 0; w < kVectors; ++w) {
          const size_t at = r * stride + column + w * kLanes;
          AddCompensated(d, rescale, c[r][w], acc.o + at, acc.o_low + at);
        }
      }
    }
  }
}

template <int kRows>
void AccumulateBlock(const Accumulation& acc, const float* panels, size_t panel_stride, size_t dim) {
  const size_t vectors = (dim + kLanes - 1) / kLanes;
  HWY_ALIGN float sums[kRows * kPanelKeys];
  size_t v = 0;
  for (; v + 2 <= vectors; v += 2) {
    AccumulatePanel<kRows, 2>(acc, panels + v / 2 * panel_stride * kPanelKeys, v * kLanes, sums);
  }
  if (v < vectors) {
    AccumulatePanel<kRows, 1>(acc, panels + v / 2 * panel_stride * kPanelKeys, v * kLanes, sums);
  }
}

// Calls the kernel for the number of rows; only even ones and 1 are compiled, and callers ask for no other.
template <int kRows>
void ScoresFor(int rows, const float* q, size_t dim, const float* panels, size_t panel_begin,
               size_t panel_end, float factor, float* s) {
  if constexpr (kRows > 2) {
    if (rows <= kRows - 2) {
      ScoresFor<kRows - 2>(rows, q, dim, panels, panel_begin, panel_end, factor, s);
      return;
    }
  }
  const auto block = dim <= kLongRow ? &ScoresBlock<kRows, 1> : &ScoresBlock<kRows, kLongRowSums>;
  block(q, dim, panels, panel_begin, panel_end, factor, s);
}

template <int kRows>
void AccumulateFor(const Accumulation& acc, const float* panels, size_t panel_stride, size_t dim) {
  if constexpr (kRows > 2) {
    if (acc.rows <= kRows - 2) {
      AccumulateFor<kRows - 2>(acc, panels, panel_stride, dim);
      return;
    }
  }
  AccumulateBlock<kRows>(acc, panels, panel_stride, dim);
}

void Scores(const void* q, int rows, int dim, const void* panels, int panel_begin, int panel_end,
            float factor, float* s) {
  ScoresFor<kBlockRows>(rows, static_cast<const float*>(q), static_cast<size_t>(dim),
                        static_cast<const float*>(panels), static_cast<size_t>(panel_begin),
                        static_cast<size_t>(panel_end), factor, s);
}

void Accumulate(const Accumulation& acc, const void* panels, int panel_stride, int dim) {
  AccumulateFor<kBlockRows>(acc, static_cast<const float*>(panels), static_cast<size_t>(panel_stride),
                            static_cast<size_t>(dim));
}

// 12 chains hide 4 to 6 cycles of latency at two FMAs a cycle and fit 16 registers with their operands.
double FmaRounds(int64_t rounds) {
  const D d;
  constexpr int kChains = 12;
  constexpr int kUnroll = 8;
  V c[kChains];
  // Values that the compiler cannot know, so that it does not fold what it can compute. No memory barrier:
  // that would write the chains out each round.
  volatile float unknown = 0.999F;
  const V x = hn::Set(d, unknown);
  unknown = 1e-3F;
  const V y = hn::Set(d, unknown);
  for (int i = 0; i < kChains; ++i) {
    unknown = static_cast<float>(i);
    c[i] = hn::Set(d, unknown);
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) {
#pragma GCC unroll 12
      for (int i = 0; i < kChains; ++i) {
        c[i] = hn::MulAdd(c[i], x, y);
      }
    }
  }
  V sum = c[0];
  for (int i = 1; i < kChains; ++i) {
    sum = hn::Add(sum, c[i]);
  }
  volatile float keep = hn::GetLane(sum);
  (void)keep;
  return 2.0 * kChains * kUnroll * static_cast<double>(kLanes);
}

void Fill(KernelTable* table) {
  table->block_rows = kBlockRows;
  table->scores = &Scores;
  table->accumulate = &Accumulate;
  table->fma_rounds = &FmaRounds;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/fill_targets.hpp"

namespace attn::cpu {

void fill_gemm_kernels(std::int64_t target, KernelTable* table) {
  ATTN_CPU_FILL(target, table);
}

}  // namespace attn::cpu
#endif
