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

  // sum: of 2^(logit − reference) over the row's keys, 0 if it sees none. Returns the LSE in log2 units.
  __device__ __forceinline__ float finish(const cuda::ForwardParams& params, float sum, float reference,
                                          float* inverse) const {
    float total = sum;
    float top = reference;
    float keys = 1.0f;
    if (params.sinks != nullptr) {
      // Both terms over the larger of the two references, so that neither overflows.
      const float above = sink - reference;
      keys = exp2_approx(-fmaxf(above, 0.0f));
      total = sum * keys + exp2_approx(fminf(above, 0.0f));
      if (params.lse_has_sink != 0) {
        top = fmaxf(sink, reference);
      }
    }
    *inverse = total == 0.0f ? 0.0f : keys * reciprocal_approx(total);
    const float counted = params.lse_has_sink != 0 ? total : sum;
    return counted == 0.0f ? -INFINITY : top + log2_approx(counted) + shift;
  }
};

}  // namespace attn::device
