// The online softmax between the two products, in two forms with one face. Both keep, for a thread's two
// rows, a reference in log2 units and the sum of 2^(s·c − reference) over the columns the thread holds, c >
// 0.
//   classic:     the reference is the running maximum of each block, as in FlashAttention.
//   speculative: the reference is taken from a tile's first block, with a margin, and kept until a block says
//                that it no longer fits: by its sums, or by its largest logit where that is known first
//                (docs/kernels/sm90_forward.md has the argument for exactness).
// Tested by tests/kernels on plain, growing, drifting and empty rows, and by the conformance shapes.
#pragma once

#include "cuda/device/layouts.hpp"
#include "cuda/device/mask.hpp"
#include "cuda/device/ptx.hpp"
#include "cuda/sm90/config.hpp"

namespace attn::device {

// A row that has seen nothing. Not −inf: −inf − (−inf) is NaN, and a later visible key must exceed it.
inline constexpr float kNothingSeen = -1e30f;

// How far the reference stands above the maximum, and the weight, and the sum of one thread's share of a
// row's block, up to which it is kept. bf16 has fp32's range: P may be scaled by 2^-16 at no loss. With a
// wide margin a redo scales it by 2^-64, so that growing rows redo seldom (the epilogue watches for values of
// V too small for that: kWideMarginFloor); rows that are redone apart go up to the next multiple of kStep
// instead, by at least kLeastRedo: those that grow alike then outgrow it in the same block, whatever they did
// before, and the warp pays once. fp16: P must stay below 2^16 and loses bits below 2^-14, so there is no
// margin.
template <bool kBFloat16>
struct Margins;
template <>
struct Margins<true> {
  static constexpr float kFirst = 16.0f;
  static constexpr float kRedo = 64.0f;
  static constexpr float kLeastRedo = 16.0f;
  static constexpr float kStep = 64.0f;
  static constexpr float kThreshold = 24.0f;
};
template <>
struct Margins<false> {
  static constexpr float kFirst = 0.0f;
  static constexpr float kThreshold = 15.0f;
};
// A logit that is this much above the threshold has a weight above it for certain, whatever exp2_approx errs.
inline constexpr float kExp2Slack = 0x1p-8f;
// A row of unnormalised O whose absolute sum is below this after a redo may have lost bits to underflow.
inline constexpr float kWideMarginFloor = 0x1p-104f;

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Whether it holds in one of a row's four lanes.
__device__ __forceinline__ bool row_has(bool condition) {
  return (__ballot_sync(0xffffffffu, condition) >> (threadIdx.x % 32 & ~3u) & 0xfu) != 0;
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
// kGrowing: later blocks come in both ways, exponentials first (later_block) and maximum first, and which way
// leaves no trace in the bits of rows apart.
template <sm90::Softmax kForm, bool kBFloat16, bool kRowsApart, bool kGrowing>
struct OnlineSoftmax {
  static constexpr bool kWideMargin = kForm == sm90::Softmax::kSpeculative && kBFloat16 && !kGrowing;

  float scale;          // c
  float reference[2];   // log2 units, the same in the four lanes of a row
  float row_sum[2];     // this thread's columns only
  bool wide_margin[2];  // kWideMargin: a redo has raised the row's reference by more than Margins::kFirst

  using Margin = Margins<kBFloat16>;
  static constexpr float kLargestSum = static_cast<float>(1 << static_cast<int>(Margin::kThreshold));

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
          sums[r] = n == 0 ? p0 + p1 : sums[r] + (p0 + p1);  // the compiler keeps an addition to 0
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
    wide_margin[0] = wide_margin[1] = false;
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
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const bool redo = !kRowsApart || row_has(!(row_sum[r] <= kLargestSum));
        const float top = fmaxf(quad_max(thread_max(scores, r, -INFINITY)) * scale, kNothingSeen) + kMargin;
        reference[r] = redo ? top : reference[r];
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
    return __any_sync(0xffffffffu, !(sums[0] <= kLargestSum && sums[1] <= kLargestSum));
  }

  // The reference of a row whose largest logit is score · scale.
  [[nodiscard]] __device__ __forceinline__ float raised_reference(float score) const {
    if constexpr (!kWideMargin) {
      return fmaf(score, scale, Margin::kFirst);
    } else if constexpr (kRowsApart) {
      const float top = score * scale;
      // By a whole number, so that the largest weight is a power of two, which rounds to itself.
      const float level = ceilf((top + Margin::kLeastRedo) * (1.0f / Margin::kStep)) * Margin::kStep;
      return top + rintf(level - top);
    } else {
      return score * scale + Margin::kRedo;
    }
  }

  // Brings rows' references to this block's maximum, with a margin, where that is higher: of rows apart those
  // that have outgrown theirs. That is what their sums say (`fired`); if kGrowing, the largest logit, which
  // is known before the exponentials too. O is to be multiplied by `rescale`.
  template <class Scores>
  __device__ __forceinline__ void raise_references(Scores const& scores, const bool (&fired)[2],
                                                   float (&rescale)[2]) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float score = quad_max(thread_max(scores, r, -INFINITY));
      const float top = score * scale;
      float next;
      if constexpr (kForm == sm90::Softmax::kClassic) {
        next = fmaxf(top, reference[r]);
      } else if constexpr (!kRowsApart) {
        next = fmaxf(raised_reference(score), reference[r]);
      } else if constexpr (!kGrowing) {
        next = row_has(fired[r]) && top > reference[r] ? raised_reference(score) : reference[r];
      } else {
        const bool outgrown = fmaf(score, scale, -reference[r]) > Margin::kThreshold + kExp2Slack;
        next = outgrown ? raised_reference(score) : reference[r];
      }
      if constexpr (kWideMargin) {
        wide_margin[r] |= next > reference[r];
      }
      rescale[r] = exp2_approx(reference[r] - next);
      // Not for the compiler to fuse with the addition that follows, which it does in one loop and not in the
      // other.
      row_sum[r] = __fmul_rn(row_sum[r], rescale[r]);
      reference[r] = next;
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

  // Maximum first: the weights in the place of the scores, and their sums.
  template <class Scores>
  __device__ __forceinline__ void weigh(Scores& scores) {
    float sums[2];
    CUTE_UNROLL
    for (int n = 0; n < decltype(cute::size<1, 1>(scores))::value; ++n) {
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float p0 = weight(scores, r, 0, n);
        const float p1 = weight(scores, r, 1, n);
        sums[r] = n == 0 ? p0 + p1 : sums[r] + (p0 + p1);
        scores(r, cute::make_coord(0, n)) = p0;
        scores(r, cute::make_coord(1, n)) = p1;
      }
    }
    row_sum[0] += sums[0];
    row_sum[1] += sums[1];
  }

  // Then the weights as P, once P·V has read the last one.
  template <class Scores, class Packed>
  __device__ __forceinline__ static void pack(Scores const& weights, Packed& p) {
    CUTE_UNROLL
    for (int n = 0; n < decltype(cute::size<1, 1>(weights))::value; ++n) {
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        p(r + 2 * n) =
            pack_pair<kBFloat16>(weights(r, cute::make_coord(0, n)), weights(r, cute::make_coord(1, n)));
      }
    }
  }

  // Speculative: P of a later block under the reference that stands; made again, with O and the sums brought
  // to a new reference, where rows have outgrown it. `on_redo` is told whether one of this thread's rows has
  // that had seen a key.
  template <bool kPartial, class Scores, class Packed, class Output, class OnRedo>
  __device__ __forceinline__ void later_block(Scores const& scores, Packed& p, Output& o, int visible,
                                              OnRedo const& on_redo) {
    float sums[2];
    exponentials<kPartial>(scores, p, sums, visible);
    if (outgrown(sums)) {
      const bool fired[2] = {!(sums[0] <= kLargestSum), !(sums[1] <= kLargestSum)};
      const bool known = (fired[0] && reference[0] > 0.5f * kNothingSeen) ||
                         (fired[1] && reference[1] > 0.5f * kNothingSeen);
      float rescale[2];
      raise_references(scores, fired, rescale);
      rescale_output(o, rescale);
      exponentials<kPartial>(scores, p, sums, visible);
      on_redo(known);
    }
    row_sum[0] += sums[0];
    row_sum[1] += sums[1];
  }
};

}  // namespace attn::device
