// One query row by one warp, in fp32, straight from global memory: the judge of rows whose tile result is not
// finite (or may have lost bits to underflow). It reads visible keys and values only, so a NaN behind the
// mask cannot reach it (contract rule 6), and takes two passes, so that logits and values of any size are
// safe. Slow, and meant to be rare. Tested by tests/kernels with poisoned and extreme inputs.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/device/ptx.hpp"
#include "cuda/device/row_end.hpp"
#include "cuda/device/score.hpp"
#include "cuda/params.h"

namespace attn::device {

// count: a multiple of 8. Rows for TMA are 16-byte aligned; others are read element by element.
template <class Element>
__device__ __forceinline__ float dot_row(const Element* q, const Element* k, int count, bool aligned) {
  float sum = 0.0f;
  if (!aligned) {
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
      sum = fmaf(static_cast<float>(q[c]), static_cast<float>(k[c]), sum);
    }
    return sum;
  }
#pragma unroll 1
  for (int c = 0; c < count; c += 8) {
    const uint4 q_bits = *reinterpret_cast<const uint4*>(q + c);
    const uint4 k_bits = *reinterpret_cast<const uint4*>(k + c);
    const auto* q8 = reinterpret_cast<const Element*>(&q_bits);
    const auto* k8 = reinterpret_cast<const Element*>(&k_bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(static_cast<float>(q8[i]), static_cast<float>(k8[i]), sum);
    }
  }
  return sum;
}

// One row's logits in log2 units, softcap and ALiBi (shifted, device/score.hpp) included.
template <class Element, sm90::Logits kLogits>
struct RowLogits {
  const cuda::ForwardParams& params;
  const Element* q;
  const Element* k;  // key 0
  RowBias bias;
  bool aligned;

  __device__ __forceinline__ float operator()(int j) const {
    const float dot = dot_row(q, k + j * params.k_strides.seqlen, params.head_dim_qk, aligned);
    if constexpr (kLogits == sm90::Logits::kScaled) {
      // Not to be contracted with what the caller subtracts: both passes must round it alike.
      return __fmul_rn(params.negate_q ? -dot : dot, params.scale_log2);
    }
    const float s = scaled_logit(params, params.negate_q ? -dot : dot);
    return fmaf(bias.slope_log2, static_cast<float>(j - bias.origin), s);
  }
};

// Writes the row's O through `store(column, value)` and returns its LSE; every lane takes part.
template <class Element, sm90::KernelKey kKey, class Store>
__device__ __forceinline__ float exact_row(const cuda::ForwardParams& params, int batch, int head, int row,
                                           Store const& store) {
  constexpr int kColumns = (kKey.head_dim_v + 31) / 32;
  const int lane = opaque(static_cast<int>(threadIdx.x) % 32);  // nothing of this is worth a register before
  row = opaque(row);
  const int begin = key_begin<kKey.mask>(params, row);
  const int end = key_end<kKey.mask>(params, row);
  const int kv_head = opaque(head) / params.group_size;
  const auto* v = static_cast<const Element*>(params.v_data) + batch * params.v_strides.batch +
                  kv_head * params.v_strides.heads;
  const RowLogits<Element, kKey.logits> logit{
      params,
      static_cast<const Element*>(params.q_data) + batch * params.q_strides.batch +
          row * params.q_strides.seqlen + head * params.q_strides.heads,
      static_cast<const Element*>(params.k_data) + batch * params.k_strides.batch +
          kv_head * params.k_strides.heads,
      {params, batch, head, begin, end},
      (params.plain & (cuda::kPlainQ | cuda::kPlainK)) == 0};

  float top = -INFINITY;
  bool has_nan = false;
#pragma unroll 1
  for (int j = begin + lane; j < end; j += 32) {
    const float s = logit(j);
    has_nan |= s != s;
    top = fmaxf(top, s);
  }
#pragma unroll
  for (int delta = 16; delta > 0; delta /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, delta));
  }
  const bool empty = top == -INFINITY && !__any_sync(0xffffffffu, has_nan);

  float o[kColumns] = {};
  float sum = 0.0f;
#pragma unroll 1
  for (int first = begin; first < end && !empty; first += 32) {
    float p = 0.0f;
    if (first + lane < end) {
      const float s = logit(first + lane);
      p = exp2f(s - top);
      // A weight that fp32 flushes is still positive, and Inf in its value gives Inf, not 0 · Inf = NaN: down
      // to where float64 flushes it too, 2^-1075, which is what the reference does (contract rule 7).
      p = (p == 0.0f && s - top > -1075.0f) ? 1.4e-45f : p;
    }
    sum += p;
    const int count = end - first < 32 ? end - first : 32;
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const float p_t = __shfl_sync(0xffffffffu, p, t);
      const Element* v_row = v + (first + t) * params.v_strides.seqlen + lane;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (lane + 32 * i < params.head_dim_v) {
          o[i] = fmaf(p_t, static_cast<float>(v_row[32 * i]), o[i]);
        }
      }
    }
  }
#pragma unroll
  for (int delta = 16; delta > 0; delta /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, delta);
  }
  float inverse;
  const RowEnd<kKey.logits> row_end(params, batch, head, row, begin, end);
  const float lse = row_end.finish(params, sum, top, &inverse) * kLn2;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (lane + 32 * i < params.head_dim_v) {
      store(lane + 32 * i, empty ? 0.0f : o[i] * inverse);
    }
  }
  return lse;
}

}  // namespace attn::device
