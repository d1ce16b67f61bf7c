// Host conversions between fp32 and the 16-bit types, one element at a time: the meaning that every SIMD
// conversion must reproduce bit for bit (round to nearest even; NaN stays NaN). Tested over every bit
// pattern in tests/unit/numeric_test.cpp.
#pragma once

#include <attn/tensor.hpp>
#include <bit>
#include <cstdint>
#include <cstring>

namespace attn::core {

[[nodiscard]] constexpr float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[nodiscard]] constexpr std::uint16_t float_to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {  // NaN: keep the top bits and make it quiet
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

[[nodiscard]] constexpr float fp16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) {
    // Inf, or NaN made quiet as the conversion instructions do.
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13) | quiet);
  }
  if (exponent == 0) {  // zero or subnormal: mantissa · 2⁻²⁴, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

[[nodiscard]] constexpr std::uint16_t float_to_fp16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude < 0x38800000U) {  // below 2⁻¹⁴: a subnormal, k · 2⁻²⁴
    // Adding 0.5 leaves the value's multiple of 2⁻²⁴ in the low mantissa bits, rounded to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rebased = magnitude - (112U << 23);
  return static_cast<std::uint16_t>(sign | ((rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13));
}

// Reads and writes one element of any dtype at an element offset. memcpy: the base may lie anywhere.
[[nodiscard]] inline float load_element(const void* data, DType dtype, std::int64_t offset) noexcept {
  if (dtype == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, static_cast<const char*>(data) + offset * 4, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + offset * 2, 2);
  return dtype == DType::kFloat16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

inline void store_element(void* data, DType dtype, std::int64_t offset, float value) noexcept {
  if (dtype == DType::kFloat32) {
    std::memcpy(static_cast<char*>(data) + offset * 4, &value, 4);
    return;
  }
  const std::uint16_t bits = dtype == DType::kFloat16 ? float_to_fp16(value) : float_to_bf16(value);
  std::memcpy(static_cast<char*>(data) + offset * 2, &bits, 2);
}

// The value after a round trip through the dtype.
[[nodiscard]] constexpr float round_to(DType dtype, float value) noexcept {
  switch (dtype) {
    case DType::kFloat16:
      return fp16_to_float(float_to_fp16(value));
    case DType::kBFloat16:
      return bf16_to_float(float_to_bf16(value));
    case DType::kFloat32:
      break;
  }
  return value;
}

}  // namespace attn::core
