// Changes of the logits between Q·Kᵀ and the softmax: softcap, then ALiBi (contract rule 1). Changed logits
// are in log2 units. A row's ALiBi bias is counted from the key that it favours most among those it sees, not
// from the diagonal: the softmax does not notice, and a row far from the diagonal loses no bits; the LSE gets
// the difference back. Used by the mainloop and by exact_row; tested by the conformance shapes and
// tests/kernels.
#pragma once

#include "cuda/device/layouts.hpp"
#include "cuda/device/ptx.hpp"
#include "cuda/params.h"

namespace attn::device {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.69314718055994531f;

// tanh with a relative error of at most 4.4e-7: a minimax quotient of polynomials in x² on ±7.9 (fitted
// to 1.3e-7), where 1 − tanh is 2.7e-7. One MUFU instruction, the reciprocal: exponentials are what such
// kernels are short of, and tanh.approx (2^-11) would break the bound of the LSE. NaN stays NaN.
__device__ __forceinline__ float tanh_quotient(float x) {
  constexpr float kEnd = 7.9f;
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-kEnd));
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(kEnd));
  const float y = x * x;
  const float p = fmaf(fmaf(fmaf(1.15318117e-5f, y, 2.96047074e-3f), y, 1.29344150e-1f), y, 0.999999881f);
  const float q = fmaf(
      fmaf(fmaf(fmaf(2.49253930e-7f, y, 2.40011694e-4f), y, 2.38540731e-2f), y, 4.62676406e-1f), y, 1.0f);
  return x * p * reciprocal_approx(q);  // q is 1 to 8e3
}

// s · scale_log2 of one logit, capped.
__device__ __forceinline__ float scaled_logit(const cuda::ForwardParams& params, float s) {
  if (params.softcap == 0.0f) {
    return s * params.scale_log2;
  }
  const float cap = params.softcap * kLog2E;
  return cap * tanh_quotient(s * (params.scale_log2 / cap));
}

// One row's bias: slope_log2 · (j − origin) of key j.
struct RowBias {
  float slope_log2 = 0.0f;
  int origin = 0;

  __device__ __forceinline__ RowBias(const cuda::ForwardParams& params, int batch, int head, int begin,
                                     int end) {
    if (params.alibi_slopes != nullptr) {
      slope_log2 = params.alibi_slopes[batch * params.alibi_batch_stride + head] * kLog2E;
      origin = slope_log2 < 0.0f ? begin : end - 1;
    }
  }
  // What the row's logits were lowered by, in log2 units.
  __device__ __forceinline__ float shift(const cuda::ForwardParams& params, int row) const {
    return slope_log2 * static_cast<float>(origin - row - params.key_offset);
  }
};

// A block of logits, whose first column of this thread is key `key`.
template <class Scores>
__device__ __forceinline__ void change_logits(Scores& scores, const cuda::ForwardParams& params,
                                              const RowBias (&bias)[2], int key) {
  const float cap = params.softcap * kLog2E;
  const float factor = params.softcap == 0.0f ? params.scale_log2 : params.scale_log2 / cap;
  CUTE_UNROLL
  for (int i = 0; i < decltype(cute::size(scores))::value; ++i) {
    scores(i) *= factor;
  }
  if (params.softcap != 0.0f) {
    CUTE_UNROLL
    for (int i = 0; i < decltype(cute::size(scores))::value; ++i) {
      scores(i) = cap * tanh_quotient(scores(i));
    }
  }
  if (params.alibi_slopes != nullptr) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const auto distance = static_cast<float>(key - bias[r].origin);
      CUTE_UNROLL
      for (int n = 0; n < decltype(cute::size<1, 1>(scores))::value; ++n) {
        CUTE_UNROLL
        for (int e = 0; e < 2; ++e) {
          auto& s = scores(r, cute::make_coord(e, n));
          s = fmaf(bias[r].slope_log2, distance + static_cast<float>(8 * n + e), s);
        }
      }
    }
  }
}

}  // namespace attn::device
