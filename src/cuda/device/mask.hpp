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

// scores: a (row half, (pair, group)) view. Row half r keeps its columns [begins[r], ends[r]) of the block,
// both less the thread's own column offset 2·(lane % 4), so that each test is against a constant.
template <class Scores>
__device__ __forceinline__ void mask_right(Scores& scores, const int (&ends)[2]) {
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    CUTE_UNROLL
    for (int n = 0; n < decltype(cute::size<1, 1>(scores))::value; ++n) {
      CUTE_UNROLL
      for (int e = 0; e < 2; ++e) {
        auto& s = scores(r, cute::make_coord(e, n));
        s = (8 * n + e < ends[r]) ? s : -INFINITY;
      }
    }
  }
}

template <class Scores>
__device__ __forceinline__ void mask_left(Scores& scores, const int (&begins)[2]) {
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    CUTE_UNROLL
    for (int n = 0; n < decltype(cute::size<1, 1>(scores))::value; ++n) {
      CUTE_UNROLL
      for (int e = 0; e < 2; ++e) {
        auto& s = scores(r, cute::make_coord(e, n));
        s = (8 * n + e >= begins[r]) ? s : -INFINITY;
      }
    }
  }
}

}  // namespace attn::device
