// The online softmax between the two products, in two forms with one face. Both keep, for a thread's two
// rows, a reference in log2 units and the sum of 2^(s·c − reference) over the columns the thread holds, c >
// 0.
//   classic:     the reference is the running maximum of each block, as in FlashAttention.
//   speculative: the reference is taken from a tile's first block, with a margin, and kept until a block's
//   sum
//                says that it no longer fits (docs/kernels/sm90_forward.md has the argument for exactness).
// Tested by tests/kernels on plain, growing, drifting and empty rows, and by the conformance shapes.
#pragma once

#include "cuda/device/layouts.hpp"
#include "cuda/device/mask.hpp"
#include "cuda/device/ptx.hpp"
#include "cuda/sm90/config.hpp"

namespace attn::device {

// A row that has seen nothing. Not −inf: −inf − (−inf) is NaN, and a later visible key must exceed it.
inline constexpr float kNothingSeen = -1e30f;

// How far the reference stands above the maximum, and the sum of one thread's share of a row's block up to
// which a block is kept. bf16 has fp32's range: P may be scaled by 2^-16 at no loss; after a redo 2^-64, so
// that growing rows redo seldom (the epilogue watches for values of V too small for that: kWideMarginFloor).
// Rows that are redone apart go up to the next multiple of kStep instead, by at least kLeastRedo: those that
// grow alike then outgrow it in the same block, whatever they did before, and the warp pays once.
// fp16: P must stay below 2^16 and loses bits below 2^-14, so there is no margin.
template <bool kBFloat16>
struct Margins;
template <>
struct Margins<true> {
  static constexpr float kFirst = 16.0f;
  static constexpr float kRedo = 64.0f;
  static constexpr float kLeastRedo = 16.0f;
  static constexpr float kStep = 64.0f;
  static constexpr float kThreshold = 0x1p24f;
};
template <>
struct Margins<false> {
  static constexpr float kFirst = 0.0f;
  static constexpr float kRedo = 0.0f;
  static constexpr float kStep = 0.0f;
  static constexpr float kThreshold = 0x1p15f;
};
// Rows that are redone apart and grow on: how often their reference is taken anew, and by how much (log2
// units) it must have risen for that to go on. 2^64 of margin and 2^24 of threshold hold 4 blocks of growth
// by 2^22 each.
inline constexpr int kRenewBlocks = 4;
inline constexpr float kStillGrowing = 40.0f;
// A row of unnormalised O whose absolute sum is below this after a redo may have lost bits to underflow.
inline constexpr float kWideMarginFloor = 0x1p-104f;

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float pair_sum(float x) {
  return x + __shfl_xor_sync(0xffffffffu, x, 1);
}
__device__ __forceinline__ float sum_of_pairs(float x) {
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_sum(float x) {
  return sum_of_pairs(pair_sum(x));
}

// kRowsApart: a row's bits must not depend on its neighbours in the warp, since one may see a key that
// another must not be influenced by (contract rule 6). Without it, rows are redone together, and so less
// often.
// kRenew: such rows are raised at fixed blocks too (`renew`).
template <sm90::Softmax kForm, bool kBFloat16, bool kRowsApart, bool kRenew>
struct OnlineSoftmax {
  float scale;          // c
  float reference[2];   // log2 units, the same in the four lanes of a row
  float row_sum[2];     // this thread's columns only
  bool wide_margin[2];  // speculative: a redo has raised the row's reference by more than Margins::kFirst
  bool growing[2];      // kRenew: the last raise was a large one
  int renew_at;         // kRenew: 0 if some row of the warp is growing, else kRenewBlocks

  using Margin = Margins<kBFloat16>;

  template <class Scores>
  __device__ __forceinline__ static float thread_max(Scores const& scores, int r, float start) {
    float m = start;
    CUTE_UNROLL
    for (int n = 0; n < decltype(cute::size<1, 1>(scores))::value; ++n) {
      m = fmaxf(m, fmaxf(scores(r, cute::make_coord(0, n)), scores(r, cute::make_coord(1, n))));
    }
    return m;
  }

  template <class Scores>
  __device__ __forceinline__ float weight(Scores const& scores, int r, int c, int n) const {
    return exp2_approx(fmaf(scores(r, cute::make_coord(c, n)), scale, -reference[r]));
  }

  // p: (pairs of row half r, group n) as packed words, index r + 2·n: the order of the accumulator. kPartial:
  // no row of the warp sees columns from `visible` on, and their logits are −inf; 0 is what 2^−inf would
  // give.
  template <bool kPartial, class Scores, class Packed>
  __device__ __forceinline__ void exponentials(Scores const& scores, Packed& p, float (&sums)[2],
                                               int visible) const {
    constexpr int kGroups = decltype(cute::size<1, 1>(scores))::value;
    constexpr int kRegion = kPartial ? kRegionColumns / 8 : kGroups;
    sums[0] = sums[1] = 0.0f;
    CUTE_UNROLL
    for (int first = 0; first < kGroups; first += kRegion) {
      if (kPartial && 8 * first >= visible) {
        CUTE_UNROLL
        for (int i = 2 * first; i < 2 * (first + kRegion) && i < 2 * kGroups; ++i) {
          p(i) = 0;
        }
        continue;
      }
      CUTE_UNROLL
      for (int n = first; n < first + kRegion && n < kGroups; ++n) {
        CUTE_UNROLL
        for (int r = 0; r < 2; ++r) {
          const float p0 = weight(scores, r, 0, n);
          const float p1 = weight(scores, r, 1, n);
          sums[r] += p0 + p1;
          p(r + 2 * n) = pack_pair<kBFloat16>(p0, p1);
        }
      }
    }
  }

  // A tile's first block: sets reference and sum. kShort: from the maximum of the first 8 columns, and if
  // that does not fit, from the true one.
  template <bool kShort, bool kPartial, class Scores, class Packed>
  __device__ __forceinline__ void first_block(Scores const& scores, Packed& p, int visible) {
    constexpr float kMargin = kForm == sm90::Softmax::kSpeculative ? Margin::kFirst : 0.0f;
    wide_margin[0] = wide_margin[1] = growing[0] = growing[1] = false;
    renew_at = kRenewBlocks;
    if constexpr (kShort) {
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float top = fmaxf(scores(r, cute::make_coord(0, 0)), scores(r, cute::make_coord(1, 0)));
        reference[r] = fmaxf(quad_max(top) * scale, kNothingSeen) + kMargin;
      }
      exponentials<kPartial>(scores, p, row_sum, visible);
      if (!outgrown(row_sum)) {
        return;
      }
      bool redo[2];
      rows_to_redo(row_sum, redo);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float top = fmaxf(quad_max(thread_max(scores, r, -INFINITY)) * scale, kNothingSeen) + kMargin;
        reference[r] = redo[r] ? top : reference[r];
      }
    } else {
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        reference[r] = fmaxf(quad_max(thread_max(scores, r, -INFINITY)) * scale, kNothingSeen) + kMargin;
      }
    }
    exponentials<kPartial>(scores, p, row_sum, visible);
  }

  // Whether a block's sums say that the reference of some row of the warp no longer fits. NaN says so too.
  __device__ __forceinline__ static bool outgrown(const float (&sums)[2]) {
    return __any_sync(0xffffffffu, !(sums[0] <= Margin::kThreshold && sums[1] <= Margin::kThreshold));
  }

  // Which of this thread's two rows are to be redone, now that some row of the warp is.
  __device__ __forceinline__ static void rows_to_redo(const float (&sums)[2], bool (&rows)[2]) {
    const unsigned lane = threadIdx.x % 32;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      if constexpr (kRowsApart) {  // by the row's own four lanes
        const unsigned lanes = __ballot_sync(0xffffffffu, !(sums[r] <= Margin::kThreshold));
        rows[r] = (lanes >> (lane & ~3u) & 0xfu) != 0;
      } else {
        rows[r] = true;
      }
    }
  }

  // Classic, part 1: the new maximum, and the factors that bring earlier sums and O to it.
  template <class Scores>
  __device__ __forceinline__ void raise_reference(Scores const& scores, float (&rescale)[2]) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float top = fmaxf(quad_max(thread_max(scores, r, -INFINITY)) * scale, reference[r]);
      rescale[r] = exp2_approx(reference[r] - top);
      row_sum[r] *= rescale[r];
      reference[r] = top;
    }
  }

  template <class Output>
  __device__ __forceinline__ static void rescale_output(Output& o, const float (&factor)[2]) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTE_UNROLL
      for (int n = 0; n < decltype(cute::size<1, 1>(o))::value; ++n) {
        o(r, cute::make_coord(0, n)) *= factor[r];
        o(r, cute::make_coord(1, n)) *= factor[r];
      }
    }
  }

  // Speculative, part 1: rows that are redone apart and grow on take their reference anew in every
  // kRenewBlocks-th block, before they outgrow it: each by its own maximum, but all at the same block, or
  // they would fall out of step and some row of the warp would be redone in nearly every one. Whether it was
  // so; O is then to be multiplied by `rescale`.
  template <class Scores>
  [[nodiscard]] __device__ __forceinline__ bool renew(Scores const& scores, int block, float (&rescale)[2]) {
    if (!kRenew || block % kRenewBlocks != renew_at) {
      return false;
    }
    raise_rows(scores, growing, rescale);
    return true;
  }

  // Speculative, part 2: P of a later block under the reference that stands; made again, with O and the sums
  // brought to a new reference, for rows that have outgrown it.
  template <bool kPartial, class Scores, class Packed, class Output>
  __device__ __forceinline__ void later_block(Scores const& scores, Packed& p, Output& o, int visible,
                                              bool renewed, float (&rescale)[2]) {
    float sums[2];
    exponentials<kPartial>(scores, p, sums, visible);
    if (renewed) {
      rescale_output(o, rescale);
    }
    if (outgrown(sums)) {
      bool redo[2];
      rows_to_redo(sums, redo);
      raise_rows(scores, redo, rescale);
      rescale_output(o, rescale);
      exponentials<kPartial>(scores, p, sums, visible);
    }
    row_sum[0] += sums[0];
    row_sum[1] += sums[1];
  }

  __device__ __forceinline__ static float raised_reference(float top) {
    if constexpr (kRowsApart && Margin::kStep > 0.0f) {
      // By a whole number, so that the largest weight is a power of two, which rounds to itself.
      const float level = ceilf((top + Margin::kLeastRedo) * (1.0f / Margin::kStep)) * Margin::kStep;
      return top + rintf(level - top);
    } else {
      return top + Margin::kRedo;
    }
  }

  // Brings `rows` to this block's maximum, with the wide margin, where that is above their reference; O is to
  // be multiplied by `rescale`.
  template <class Scores>
  __device__ __forceinline__ void raise_rows(Scores const& scores, const bool (&rows)[2],
                                             float (&rescale)[2]) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float top = quad_max(thread_max(scores, r, -INFINITY)) * scale;
      // Rows redone together all take the wide margin, so that the warp seldom comes here again.
      const bool own = kRowsApart && !(kRenew && growing[r]);
      const float above = raised_reference(top);
      const bool raise = rows[r] && (own ? top : above) > reference[r];
      const float raised = raise ? above : reference[r];
      if constexpr (kRenew) {
        growing[r] = rows[r] ? raised > reference[r] + kStillGrowing : growing[r];
      }
      rescale[r] = exp2_approx(reference[r] - raised);
      row_sum[r] *= rescale[r];
      reference[r] = raised;
      wide_margin[r] |= raise;
    }
    if constexpr (kRenew) {
      renew_at = __any_sync(0xffffffffu, growing[0] || growing[1]) ? 0 : kRenewBlocks;
    }
  }
};

}  // namespace attn::device
