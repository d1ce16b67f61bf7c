// One query row by one warp, in fp32, straight from global memory: the judge of rows whose tile result is not
// finite (or may have lost bits to underflow). It reads visible keys and values only, so a NaN behind the
// mask cannot reach it (contract rule 6), and takes two passes, so that logits and values of any size are
// safe. Slow, and meant to be rare. Tested by tests/kernels with poisoned and extreme inputs.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/device/ptx.hpp"
#include "cuda/params.h"

namespace attn::device {

template <class Element, int kHeadDim>
__device__ __forceinline__ float dot_row(const Element* q, const Element* k) {
  float sum = 0.0f;
#pragma unroll 1
  for (int c = 0; c < kHeadDim; c += 8) {
    const uint4 q_bits = *reinterpret_cast<const uint4*>(q + c);  // rows are 16-byte aligned (support.cpp)
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

// Writes the row's O through `store(column, value)` and returns its LSE; every lane takes part.
template <class Element, int kHeadDim, class Store>
__device__ __forceinline__ float exact_row(const cuda::ForwardParams& params, int batch, int head, int row,
                                           int end, Store const& store) {
  constexpr int kColumns = kHeadDim / 32;
  const int lane = opaque(static_cast<int>(threadIdx.x) % 32);  // nothing of this is worth a register before
  row = opaque(row);
  const int kv_head = opaque(head) / params.group_size;
  const auto* q = static_cast<const Element*>(params.q_data) + batch * params.q_strides.batch +
                  row * params.q_strides.seqlen + head * params.q_strides.heads;
  const auto* k = static_cast<const Element*>(params.k_data) + batch * params.k_strides.batch +
                  kv_head * params.k_strides.heads;
  const auto* v = static_cast<const Element*>(params.v_data) + batch * params.v_strides.batch +
                  kv_head * params.v_strides.heads;
  const float scale = params.negate_q ? -params.scale_log2 : params.scale_log2;

  float top = -INFINITY;
  bool has_nan = false;
#pragma unroll 1
  for (int j = lane; j < end; j += 32) {
    const float s = dot_row<Element, kHeadDim>(q, k + j * params.k_strides.seqlen) * scale;
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
  for (int begin = 0; begin < end && !empty; begin += 32) {
    float p = 0.0f;
    if (begin + lane < end) {
      const float s = dot_row<Element, kHeadDim>(q, k + (begin + lane) * params.k_strides.seqlen) * scale;
      p = exp2f(s - top);
      // A finite logit has a positive weight, however small: Inf in its value gives Inf, not 0 · Inf = NaN.
      p = (p == 0.0f && s > -INFINITY) ? 1.4e-45f : p;
    }
    sum += p;
    const int count = end - begin < 32 ? end - begin : 32;
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const float p_t = __shfl_sync(0xffffffffu, p, t);
      const Element* v_row = v + (begin + t) * params.v_strides.seqlen + lane;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        o[i] = fmaf(p_t, static_cast<float>(v_row[32 * i]), o[i]);
      }
    }
  }
#pragma unroll
  for (int delta = 16; delta > 0; delta /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, delta);
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    store(lane + 32 * i, empty ? 0.0f : o[i] / sum);
  }
  return empty ? -INFINITY : (top + log2f(sum)) * 0.69314718f;
}

}  // namespace attn::device
