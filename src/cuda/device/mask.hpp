// Which keys a query row sees, and the masking of one block of logits: by selection, never by arithmetic, so
// that NaN in a masked key has no influence (contract rule 6). Tested by the conformance shapes and by
// tests/kernels (tile edges, poisoned keys).
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/device/layouts.hpp"
#include "cuda/params.h"
#include "cuda/sm90/config.hpp"

namespace attn::device {

// Keys [key_begin, key_end) are visible to query row i; none are where key_end <= key_begin.
template <sm90::Mask kMask>
__host__ __device__ __forceinline__ int key_begin(const cuda::ForwardParams& params, int row) {
  if constexpr (kMask == sm90::Mask::kBand) {
    const int begin = row + params.band_lower;
    return begin > 0 ? begin : 0;
  } else {
    return 0;
  }
}

template <sm90::Mask kMask>
__host__ __device__ __forceinline__ int key_end(const cuda::ForwardParams& params, int row) {
  if constexpr (kMask == sm90::Mask::kBand) {
    const int end = row + params.band_upper;
    return end < params.seqlen_kv ? end : params.seqlen_kv;  // may be negative
  } else {
    return params.seqlen_kv;
  }
}

// A block's columns are masked in regions: one whose columns every row of the warp sees is left alone, and
// one that none sees needs no exponentials.
inline constexpr int kRegionColumns = 32;

// scores: a (row half, (pair, group)) view. Keeps column c of row half r where visible(r, c), in regions that
// are not whole(first column); c is less the thread's own column offset 2·(lane % 4), so that each test is
// against a constant.
template <class Scores, class Whole, class Visible>
__device__ __forceinline__ void mask_regions(Scores& scores, Whole const& whole, Visible const& visible) {
  constexpr int kGroups = decltype(cute::size<1, 1>(scores))::value;
  CUTE_UNROLL
  for (int first = 0; first < kGroups; first += kRegionColumns / 8) {
    if (whole(8 * first)) {
      continue;
    }
    CUTE_UNROLL
    for (int n = first; n < first + kRegionColumns / 8 && n < kGroups; ++n) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        auto& s = scores(i / 2, cute::make_coord(i % 2, n));
        s = visible(i / 2, 8 * n + i % 2) ? s : -INFINITY;
      }
    }
  }
}

// Row half r keeps its columns below ends[r]; every row of the warp keeps columns [0, whole).
template <class Scores>
__device__ __forceinline__ void mask_right(Scores& scores, const int (&ends)[2], int whole) {
  mask_regions(
      scores, [&](int first) __attribute__((always_inline)) { return first + kRegionColumns <= whole; },
      [&](int r, int column) __attribute__((always_inline)) { return column < ends[r]; });
}

// Row half r keeps its columns from begins[r] on; every row of the warp keeps those from `whole` on.
template <class Scores>
__device__ __forceinline__ void mask_left(Scores& scores, const int (&begins)[2], int whole) {
  mask_regions(
      scores, [&](int first) __attribute__((always_inline)) { return first >= whole; },
      [&](int r, int column) __attribute__((always_inline)) { return column >= begins[r]; });
}

}  // namespace attn::device
