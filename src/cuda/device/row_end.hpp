// The end of one query row: its sum and reference, an optional sink and the shift of its ALiBi bias become
// the factor that normalises O and the LSE (contract rules 1, 4 and 5). Shared by the epilogue and exact_row;
// tested by the conformance shapes (sinks of any size, empty rows) and tests/kernels.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/device/score.hpp"

namespace attn::device {

template <sm90::Logits kLogits>
struct RowEnd {
  float sink = -INFINITY;  // log2 units, against the row's shifted logits
  float shift = 0.0f;      // log2 units

  __device__ __forceinline__ RowEnd(const cuda::ForwardParams& params, int batch, int head, int row,
                                    int begin, int end) {
    if constexpr (kLogits == sm90::Logits::kChanged) {
      shift = end <= begin ? 0.0f : RowBias(params, batch, head, begin, end).shift(params, row);
    }
    if (params.sinks != nullptr) {
      sink = params.sinks[head] * kLog2E - shift;
    }
  }

  // sum: of 2^(logit − reference) over the row's keys, 0 if it sees none. Returns the LSE.
  __device__ __forceinline__ float finish(const cuda::ForwardParams& params, float sum, float reference,
                                          float* inverse) const {
    const float lse = sum == 0.0f ? -INFINITY : (reference + __log2f(sum) + shift) * kLn2;
    if (params.sinks == nullptr) {
      *inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      return lse;
    }
    // Both terms over the larger of the two references, so that neither overflows.
    const float above = sink - reference;
    const float keys = exp2_approx(-fmaxf(above, 0.0f));
    const float total = sum * keys + exp2_approx(fminf(above, 0.0f));
    *inverse = total == 0.0f ? 0.0f : keys / total;
    if (params.lse_has_sink == 0) {
      return lse;
    }
    return total == 0.0f ? -INFINITY : (fmaxf(sink, reference) + __log2f(total) + shift) * kLn2;
  }
};

}  // namespace attn::device
