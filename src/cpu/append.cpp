// See append.hpp.
#include "cpu/append.hpp"

#include <cstring>

#include "core/geometry.hpp"
#include "core/numeric.hpp"

namespace attn::cpu {

void rotate_row(const Problem& p, const Tensors& t, std::int64_t position, float* row) {
  const std::int64_t half = p.rotary_dim / 2;
  const std::int64_t cos_row = position * t.rotary_cos.strides[1];
  const std::int64_t sin_row = position * t.rotary_sin.strides[1];
  const bool interleaved = p.rotary_style == RotaryStyle::kInterleaved;
  for (std::int64_t c = 0; c < half; ++c) {
    float* a = row + (interleaved ? 2 * c : c);
    float* b = interleaved ? a + 1 : a + half;
    const float cos = core::load_element(t.rotary_cos.data, DType::kFloat32, cos_row + c);
    const float sin = core::load_element(t.rotary_sin.data, DType::kFloat32, sin_row + c);
    const float a_cos = *a * cos;
    const float b_sin = *b * sin;
    const float a_sin = *a * sin;
    const float b_cos = *b * cos;
    *a = core::round_to(p.dtype, a_cos - b_sin);
    *b = core::round_to(p.dtype, a_sin + b_cos);
  }
}

void append_head(const Problem& p, const Tensors& t, std::int64_t b, std::int64_t h, float* row) {
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  const core::Sequence s = core::sequence_of(p, t, b);
  for (std::int64_t j = 0; j < p.seqlen_new; ++j) {
    const std::int64_t position = t.seqused_kv[b] + j;
    const auto new_row = [&](const TensorView& x) {
      return static_cast<const char*>(x.data) +
             (b * x.strides[0] + j * x.strides[1] + h * x.strides[2]) * size;
    };
    char* k_out = static_cast<char*>(t.k.data) + core::kv_row_offset(p, t, t.k, s, position, h) * size;
    char* v_out = static_cast<char*>(t.v.data) + core::kv_row_offset(p, t, t.v, s, position, h) * size;
    // Copied as bytes first: what is not rotated keeps every bit, a NaN its payload.
    std::memcpy(k_out, new_row(t.k_new), static_cast<std::size_t>(p.head_dim_qk * size));
    std::memcpy(v_out, new_row(t.v_new), static_cast<std::size_t>(p.head_dim_v * size));
    if (p.rotary_dim > 0) {
      for (std::int64_t c = 0; c < p.rotary_dim; ++c) {
        row[c] = core::load_element(new_row(t.k_new), p.dtype, c);
      }
      rotate_row(p, t, position, row);
      for (std::int64_t c = 0; c < p.rotary_dim; ++c) {
        core::store_element(k_out, p.dtype, c, row[c]);
      }
    }
  }
}

}  // namespace attn::cpu
