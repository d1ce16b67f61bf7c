// The scalar conversions that define what rounding means: every 16-bit pattern, and rounding to nearest even
// at every exponent, against float64 arithmetic that shares nothing with them.
#include "core/numeric.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using attn::core::bf16_to_float;
using attn::core::float_to_bf16;
using attn::core::float_to_fp16;
using attn::core::fp16_to_float;

// Value of an IEEE-like 16-bit pattern by its definition.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - bias);
}

TEST(Numeric, EveryBf16PatternWidensToItsValueAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const double expected = value_of(pattern, 8, 7);
    const float wide = bf16_to_float(pattern);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(wide))));
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << bits;
      ASSERT_EQ(float_to_bf16(wide), pattern);
    }
  }
}

TEST(Numeric, EveryFp16PatternWidensToItsValueAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const double expected = value_of(pattern, 5, 10);
    const float wide = fp16_to_float(pattern);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(wide))));
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << bits;
      ASSERT_EQ(float_to_fp16(wide), pattern);
    }
  }
}

// Between two neighbours: below the midpoint goes down, above it up, on it to the even pattern.
void check_rounding(std::uint16_t (*narrow)(float), float (*widen)(std::uint16_t), std::uint16_t largest) {
  for (std::uint32_t bits = 0; bits < largest; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const double a = widen(low);
    const double b = widen(high);
    const auto middle = static_cast<float>((a + b) / 2);
    if (static_cast<double>(middle) ==
        (a + b) / 2) {  // representable in fp32: always but for bf16 subnormals' half
      ASSERT_EQ(narrow(middle), (bits & 1U) == 0 ? low : high) << bits;
      ASSERT_EQ(narrow(-middle), ((bits & 1U) == 0 ? low : high) | 0x8000U) << bits;
      ASSERT_EQ(narrow(std::nextafter(middle, 0.0F)), low) << bits;
      ASSERT_EQ(narrow(std::nextafter(middle, std::numeric_limits<float>::infinity())), high) << bits;
    }
  }
}

TEST(Numeric, Bf16RoundsToNearestEvenAtEveryExponent) {
  check_rounding(&float_to_bf16, &bf16_to_float, 0x7F7F);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);  // above the last midpoint: infinity
}

TEST(Numeric, Fp16RoundsToNearestEvenAtEveryExponent) {
  check_rounding(&float_to_fp16, &fp16_to_float, 0x7BFF);
  EXPECT_EQ(float_to_fp16(65519.996F), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_fp16(0x1p-25F), 0x0000);  // halfway to the least subnormal: even
  EXPECT_EQ(float_to_fp16(std::nextafter(0x1p-25F, 1.0F)), 0x0001);
}

TEST(Numeric, ElementsAreReadAndWrittenAtAnyAddress) {
  alignas(8) char buffer[32];
  for (int shift = 0; shift < 4; ++shift) {
    attn::core::store_element(buffer + shift, attn::DType::kFloat32, 2, 1.25F);
    EXPECT_EQ(attn::core::load_element(buffer + shift, attn::DType::kFloat32, 2), 1.25F);
    attn::core::store_element(buffer + shift, attn::DType::kBFloat16, 3, -3.0F);
    EXPECT_EQ(attn::core::load_element(buffer + shift, attn::DType::kBFloat16, 3), -3.0F);
    attn::core::store_element(buffer + shift, attn::DType::kFloat16, 1, 0.5F);
    EXPECT_EQ(attn::core::load_element(buffer + shift, attn::DType::kFloat16, 1), 0.5F);
  }
}

}  // namespace
