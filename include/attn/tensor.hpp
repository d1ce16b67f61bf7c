// TensorView: a borrowed, strided 4-D array. Axes are always named (batch, seqlen, heads, head_dim);
// the memory order is what the strides say, so "bhsd" data is the same view with other strides.
// Tested in tests/unit/tensor_test.cpp.
#pragma once

#include <array>
#include <attn/export.hpp>
#include <cstddef>
#include <cstdint>

namespace attn::inline v1 {

// Values are fixed: they are also those of the C ABI.
enum class DType : std::int32_t {
  kFloat32 = 0,
  kFloat16 = 1,   // IEEE binary16
  kBFloat16 = 2,  // upper half of binary32
};

ATTN_API const char* to_string(DType dtype) noexcept;  // "fp32", "fp16", "bf16"
ATTN_API std::size_t size_of(DType dtype) noexcept;    // bytes of one element

struct TensorView {
  void* data = nullptr;  // null: absent. Inputs are never written through it.
  DType dtype = DType::kFloat32;
  std::array<std::int64_t, 4> shape{};    // elements
  std::array<std::int64_t, 4> strides{};  // elements; 0 (broadcast) and negative are allowed for inputs

  [[nodiscard]] bool present() const noexcept { return data != nullptr; }
  [[nodiscard]] std::int64_t num_elements() const noexcept {
    return shape[0] * shape[1] * shape[2] * shape[3];
  }

  // (batch, seqlen, heads, head_dim) in memory order b, s, h, d.
  [[nodiscard]] static TensorView bshd(const void* data, DType dtype, std::int64_t b, std::int64_t s,
                                       std::int64_t h, std::int64_t d) noexcept {
    return {const_cast<void*>(data), dtype, {b, s, h, d}, {s * h * d, h * d, d, 1}};
  }
  // The same axes in memory order b, h, s, d.
  [[nodiscard]] static TensorView bhsd(const void* data, DType dtype, std::int64_t b, std::int64_t s,
                                       std::int64_t h, std::int64_t d) noexcept {
    return {const_cast<void*>(data), dtype, {b, s, h, d}, {h * s * d, d, s * d, 1}};
  }
  // LSE: fp32, axes (batch, heads_q, seqlen_q, 1), compact.
  [[nodiscard]] static TensorView lse(const float* data, std::int64_t b, std::int64_t h,
                                      std::int64_t s) noexcept {
    return {const_cast<float*>(data), DType::kFloat32, {b, h, s, 1}, {h * s, s, 1, 1}};
  }
};

}  // namespace attn::inline v1
