// The vector conversions of every level are core/numeric.hpp bit for bit: all 2¹⁶ patterns of fp16 and bf16
// up, and down every exponent and sign with the mantissas at which rounding decides; tails included.
#include <gtest/gtest.h>

#include <bit>

#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

class CpuConvert : public testing::TestWithParam<std::string> {
 protected:
  const KernelTable& kernels_ = *kernels_of(GetParam());
};

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

TEST_P(CpuConvert, EverySixteenBitPatternToFloat) {
  std::vector<std::uint16_t> in(1 << 16);
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<std::uint16_t>(i);
  }
  std::vector<float> out(in.size());
  kernels_.to_float(in.data(), DType::kFloat16, in.size(), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(bits(out[i]), bits(core::fp16_to_float(in[i]))) << std::hex << i;
  }
  kernels_.to_float(in.data(), DType::kBFloat16, in.size(), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(bits(out[i]), bits(core::bf16_to_float(in[i]))) << std::hex << i;
  }
}

// All upper halves (sign, exponent, seven mantissa bits), and below them what lies on, beside and between
// the ties of bf16 (bit 15) and fp16 (bit 12).
std::vector<float> rounding_cases() {
  constexpr std::uint32_t kLow[] = {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001,
                                    0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xF000, 0xF001, 0xFFFF};
  std::vector<float> values;
  for (std::uint32_t high = 0; high < (1U << 16); ++high) {
    for (const std::uint32_t low : kLow) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return values;
}

TEST_P(CpuConvert, FloatToSixteenBitsRoundsToNearestEven) {
  const std::vector<float> in = rounding_cases();
  std::vector<std::uint16_t> out(in.size());
  kernels_.from_float(in.data(), DType::kFloat16, in.size(), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], core::float_to_fp16(in[i])) << std::hex << bits(in[i]);
  }
  kernels_.from_float(in.data(), DType::kBFloat16, in.size(), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], core::float_to_bf16(in[i])) << std::hex << bits(in[i]);
  }
}

TEST_P(CpuConvert, FloatIsCopied) {
  const std::vector<float> in = rounding_cases();
  std::vector<float> out(in.size());
  kernels_.from_float(in.data(), DType::kFloat32, in.size(), out.data());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), in.size() * sizeof(float)), 0);
}

TEST_P(CpuConvert, ShortArraysTouchNothingBeyondTheirEnd) {
  for (std::size_t count = 0; count <= 40; ++count) {
    const std::vector<float> in(count,
                                1.5F);  // the heap's own end is the input's: sanitizers see a read past it
    std::vector<std::uint16_t> out(count + 1, 0xABCD);
    kernels_.from_float(in.data(), DType::kBFloat16, count, out.data());
    EXPECT_EQ(out[count], 0xABCD);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(out[i], core::float_to_bf16(1.5F));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuConvert, testing::ValuesIn(runnable_levels()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace attn::cpu
