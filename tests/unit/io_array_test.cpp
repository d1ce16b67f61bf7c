// Arrays: sizes that cannot be, conversions that are exact or refused, rounding once, and text made
// printable.
#include <cmath>
#include <limits>

#include "core/numeric.hpp"
#include "io/array.hpp"
#include "io/text.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(IoArray, BytesOfAShape) {
  const auto bytes = [](std::vector<std::int64_t> shape, std::size_t element) {
    return checked_bytes(shape, element);
  };
  EXPECT_EQ(bytes({}, 4), 4);
  EXPECT_EQ(bytes({2, 3, 5}, 2), 60);
  EXPECT_EQ(bytes({2, 0, 5}, 2), 0);
  EXPECT_EQ(bytes({-1}, 2), std::nullopt);
  EXPECT_EQ(bytes({0, -1}, 2), std::nullopt);
  EXPECT_EQ(bytes({std::int64_t{1} << 61}, 4), std::nullopt);  // 2^63
  EXPECT_EQ(bytes({(std::int64_t{1} << 61) - 1}, 4), std::numeric_limits<std::int64_t>::max() - 3);
  EXPECT_EQ(bytes({std::int64_t{1} << 32, std::int64_t{1} << 32}, 1), std::nullopt);  // 2^64 wraps to 0
  // No bytes, but strides computed from the other sizes would overflow.
  EXPECT_EQ(bytes({0, std::int64_t{1} << 62, std::int64_t{1} << 62}, 1), std::nullopt);
}

TEST(IoArray, MakeNamesWhatCannotBe) {
  Array array;
  EXPECT_TRUE(refused(make_array("q", ElementType::kFloat32, {2, -3}, &array), StatusCode::kInvalidArgument,
                      {"tensor 'q'", "(2, -3)"}));
  EXPECT_TRUE(refused(make_array("", ElementType::kFloat64, {std::int64_t{1} << 60}, &array),
                      StatusCode::kInvalidArgument, {"array", "F64"}));
#if !defined(__SANITIZE_ADDRESS__)  // which ends the process where an allocator would say no
  // Within 2^63 but more than an allocator can give.
  EXPECT_TRUE(refused(make_array("k", ElementType::kFloat16, {std::int64_t{1} << 61}, &array),
                      StatusCode::kOutOfMemory, {"tensor 'k'", "4611686018427387904"}));
#endif
}

TEST(IoArray, DataIsAlignedTo64Bytes) {
  for (const std::int64_t size : {1, 3, 1000}) {
    Array array;
    ASSERT_TRUE(make_array("", ElementType::kFloat16, {size}, &array).ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data()) % 64, 0U);
  }
}

TEST(IoArray, Shapes) {
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{}), "()");
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{5}), "(5,)");
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{2, 3}), "(2, 3)");
}

TEST(IoArray, Types) {
  EXPECT_EQ(to_dtype(ElementType::kFloat64), std::nullopt);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    EXPECT_EQ(to_dtype(to_element_type(dtype)), dtype);
  }
  EXPECT_STREQ(to_string(ElementType::kBFloat16), "BF16");
  EXPECT_EQ(size_of(ElementType::kFloat64), 8U);
}

TEST(IoArray, EveryValueOfTheSmallTypesSurvivesTheWideOnes) {
  for (const ElementType narrow : {ElementType::kFloat16, ElementType::kBFloat16}) {
    Array all;
    ASSERT_TRUE(make_array("", narrow, {65536}, &all).ok());
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      std::memcpy(all.bytes.data() + 2 * bits, &half, 2);
    }
    for (const ElementType wide : {ElementType::kFloat32, ElementType::kFloat64}) {
      Array there;
      Array back;
      ASSERT_TRUE(convert(all, wide, Rounding::kRefuse, &there).ok());
      ASSERT_TRUE(convert(there, narrow, Rounding::kRefuse, &back).ok());
      for (std::int64_t i = 0; i < 65536; ++i) {
        if (std::isnan(all.at(i))) {
          ASSERT_TRUE(std::isnan(there.at(i)) && std::isnan(back.at(i))) << i;
        } else {
          ASSERT_EQ(std::memcmp(all.bytes.data() + 2 * i, back.bytes.data() + 2 * i, 2), 0) << i;
        }
      }
    }
  }
}

TEST(IoArray, InexactIsRefusedWithTheElement) {
  const Array wide = make("q", ElementType::kFloat64, {2, 2}, {1, 2, 1 + 0x1p-30, 4});
  Array out;
  EXPECT_TRUE(refused(convert(wide, ElementType::kFloat32, Rounding::kRefuse, &out),
                      StatusCode::kInvalidArgument,
                      {"tensor 'q'", "element (1, 0)", "1.0000000009313226", "F32"}));
  const Array large = make("", ElementType::kFloat32, {1}, {65536});
  EXPECT_TRUE(refused(convert(large, ElementType::kFloat16, Rounding::kRefuse, &out),
                      StatusCode::kInvalidArgument, {"element (0,)", "65536", "F16"}));
  const Array small = make("", ElementType::kFloat32, {1}, {0x1p-25});
  EXPECT_FALSE(convert(small, ElementType::kFloat16, Rounding::kRefuse, &out).ok());
  EXPECT_TRUE(convert(make("", ElementType::kFloat32, {3}, {65504, -0.0, kInfinity}), ElementType::kFloat16,
                      Rounding::kRefuse, &out)
                  .ok());
  EXPECT_EQ(values(out), (std::vector<double>{65504, -0.0, kInfinity}));
  EXPECT_TRUE(std::signbit(out.at(1)));
}

TEST(IoArray, RoundsOnceToNearestEven) {
  struct Case {
    ElementType to;
    double value;
    double expected;
  };
  const std::vector<Case> cases{
      {ElementType::kFloat16, 1 + 0x1p-11, 1},                      // a tie, to even
      {ElementType::kFloat16, 1 + 3 * 0x1p-11, 1 + 0x1p-9},         // a tie, to even
      {ElementType::kFloat16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10},  // by way of fp32 it would be 1
      {ElementType::kFloat16, -(1 + 3 * 0x1p-11 - 0x1p-40), -(1 + 0x1p-10)},
      {ElementType::kFloat16, 65519.999, 65504},
      {ElementType::kFloat16, 65520, kInfinity},
      {ElementType::kFloat16, 0x1p-25, 0},
      {ElementType::kFloat16, 0x1p-25 + 0x1p-60, 0x1p-24},
      {ElementType::kFloat16, 1e-60, 0},
      {ElementType::kFloat16, -1e300, -kInfinity},
      {ElementType::kBFloat16, 1 + 0x1p-8, 1},
      {ElementType::kBFloat16, 1 + 0x1p-8 + 0x1p-45, 1 + 0x1p-7},
      {ElementType::kBFloat16, 0x1.FEFFFFFFFFp127, 0x1.FEp127},
      {ElementType::kBFloat16, 0x1.FFp127, kInfinity},
      {ElementType::kBFloat16, 1e39, kInfinity},
      {ElementType::kFloat32, 1 + 0x1p-24, 1},
      {ElementType::kFloat32, 1 + 3 * 0x1p-24, 1 + 0x1p-22},
  };
  for (const Case& c : cases) {
    Array out;
    ASSERT_TRUE(
        convert(make("", ElementType::kFloat64, {1}, {c.value}), c.to, Rounding::kNearestEven, &out).ok());
    EXPECT_EQ(out.at(0), c.expected) << to_string(c.to) << " of " << c.value;
    EXPECT_EQ(std::signbit(out.at(0)), std::signbit(c.value));
  }
  Array out;
  ASSERT_TRUE(convert(make("", ElementType::kFloat64, {1}, {kNaN}), ElementType::kFloat16,
                      Rounding::kNearestEven, &out)
                  .ok());
  EXPECT_TRUE(std::isnan(out.at(0)));
}

TEST(IoArray, Fp32RoundsAsTheLibraryDoes) {
  // From fp32 there is only one rounding, core's; a sample of every exponent and both signs.
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 0x00012345) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) {
      continue;
    }
    const Array source = make("", ElementType::kFloat32, {1}, {static_cast<double>(value)});
    Array half;
    Array brain;
    ASSERT_TRUE(convert(source, ElementType::kFloat16, Rounding::kNearestEven, &half).ok());
    ASSERT_TRUE(convert(source, ElementType::kBFloat16, Rounding::kNearestEven, &brain).ok());
    ASSERT_EQ(half.at(0), static_cast<double>(core::round_to(DType::kFloat16, value))) << bits;
    ASSERT_EQ(brain.at(0), static_cast<double>(core::round_to(DType::kBFloat16, value))) << bits;
  }
}

TEST(IoText, WhatFilesSayIsMadePrintable) {
  EXPECT_EQ(quote_text("q"), "'q'");
  EXPECT_EQ(quote_text("größe · 注"), "'größe · 注'");
  EXPECT_EQ(quote_text("a'b\\c"), "'a\\'b\\\\c'");
  EXPECT_EQ(quote_text(std::string_view("a\0\n\x1b[31m\x7f", 9)), "'a\\x00\\x0a\\x1b[31m\\x7f'");
  EXPECT_EQ(quote_text("\xC2\x9B"), "'\\xc2\\x9b'");  // a C1 control: CSI in some terminals
  EXPECT_EQ(quote_text("\xC0\xAF\xED\xA0\x80"), "'\\xc0\\xaf\\xed\\xa0\\x80'");  // overlong, surrogate
  EXPECT_EQ(quote_text("\xF0\x9F\x98"), "'\\xf0\\x9f\\x98'");                    // cut
  EXPECT_EQ(quote_text("abcdef", 4), "'abcd…'");
  EXPECT_EQ(quote_text("abcü", 4), "'abc…'");  // never half a character
}

}  // namespace
}  // namespace attn::io
