// merge_partials: empty partials are neutral bit for bit, others merge by log-sum-exp, and bad arguments are
// refused before anything is written.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.hpp"

namespace {

using attn::DType;
using attn::Partial;
using attn::TensorView;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One row of two channels.
struct One {
  std::vector<float> o;
  float lse;
  One(std::vector<float> values, float l) : o(std::move(values)), lse(l) {}
  [[nodiscard]] Partial partial() const {
    return {TensorView::bshd(o.data(), DType::kFloat32, 1, 1, 1, 2), TensorView::lse(&lse, 1, 1, 1)};
  }
};

One merged(const std::vector<One>& inputs) {
  std::vector<Partial> partials;
  for (const One& input : inputs) {
    partials.push_back(input.partial());
  }
  One out({kNaN, kNaN}, kNaN);
  const attn::Status status = attn::merge_partials(partials, out.partial().o, out.partial().lse);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

TEST(Merge, EmptyWithEmptyIsEmpty) {
  const One out = merged({{{0, 0}, -kInf}, {{0, 0}, -kInf}});
  EXPECT_EQ(out.o, (std::vector<float>{0, 0}));
  EXPECT_EQ(out.lse, -kInf);
}

TEST(Merge, EmptyIsNeutralBitForBitWhateverItHolds) {
  const One x({0.1F, -3e38F}, -77.7F);
  for (const auto& inputs : {std::vector<One>{x, {{kNaN, 5}, -kInf}}, std::vector<One>{{{kInf, 5}, -kInf}, x},
                             std::vector<One>{{{1, 1}, -kInf}, x, {{kNaN, kNaN}, -kInf}}}) {
    const One out = merged(inputs);
    EXPECT_EQ(out.o, x.o);
    EXPECT_EQ(out.lse, x.lse);
  }
}

TEST(Merge, WeighsByExpOfLse) {
  const One out = merged({{{1, 10}, std::log(3.0F)}, {{5, -10}, 0.0F}});
  EXPECT_FLOAT_EQ(out.o[0], 2.0F);  // (3·1 + 1·5) / 4
  EXPECT_FLOAT_EQ(out.o[1], 5.0F);
  EXPECT_FLOAT_EQ(out.lse, std::log(4.0F));
}

TEST(Merge, LargeLogSumsNeitherOverflowNorVanish) {
  for (const float shift : {1e5F, -1e5F, 3e38F}) {
    const One out = merged({{{1, 2}, shift}, {{3, 2}, shift}});
    EXPECT_EQ(out.o, (std::vector<float>{2, 2}));
    EXPECT_FLOAT_EQ(out.lse, shift + std::log(2.0F));
  }
}

TEST(Merge, NaNSpoilsItsRow) {
  const One out = merged({{{1, 2}, kNaN}, {{3, 2}, 0.0F}});
  EXPECT_TRUE(std::isnan(out.o[0]));
  EXPECT_TRUE(std::isnan(out.lse));
}

TEST(Merge, IntoOneOfItsPartialsAndAcrossTypesAndStrides) {
  // bf16 partials in bhsd order, fp16 result in bshd order with a gap after each row.
  const std::int64_t s = 2;
  const std::int64_t h = 3;
  std::vector<std::uint16_t> a(6);
  std::vector<std::uint16_t> b(6);
  std::vector<float> lse_a(6, 0.0F);
  std::vector<float> lse_b(6, std::log(3.0F));
  for (std::size_t n = 0; n < 6; ++n) {
    a[n] = attn::core::float_to_bf16(static_cast<float>(n));
    b[n] = attn::core::float_to_bf16(static_cast<float>(n) + 4.0F);
  }
  std::vector<std::uint16_t> o(12, 0x1234);
  TensorView out = TensorView::bshd(o.data(), DType::kFloat16, 1, s, h, 1);
  out.strides = {12, 6, 2, 1};
  const Partial partials[] = {
      {TensorView::bhsd(a.data(), DType::kBFloat16, 1, s, h, 1), TensorView::lse(lse_a.data(), 1, h, s)},
      {TensorView::bhsd(b.data(), DType::kBFloat16, 1, s, h, 1), TensorView::lse(lse_b.data(), 1, h, s)}};
  ASSERT_TRUE(attn::merge_partials(partials, out, partials[0].lse).ok());
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t head = 0; head < 3; ++head) {
      const auto n = static_cast<float>(head * 2 + row);
      EXPECT_FLOAT_EQ(attn::core::fp16_to_float(o[row * 6 + head * 2]), n + 3.0F);
      EXPECT_EQ(o[row * 6 + head * 2 + 1], 0x1234);  // gap
    }
  }
  EXPECT_FLOAT_EQ(lse_a[5], std::log(4.0F));
  // In place: the result over the second partial.
  ASSERT_TRUE(attn::merge_partials(partials, partials[1].o, {}).ok());
}

TEST(Merge, BadArgumentsAreNamedAndNothingIsWritten) {
  const One x({1, 2}, 0.0F);
  One out({-7, -7}, -7);
  const auto refusal = [&](std::vector<Partial> partials, TensorView o, TensorView lse, const char* part) {
    const attn::Status status = attn::merge_partials(partials, o, lse);
    EXPECT_EQ(status.code(), attn::StatusCode::kInvalidArgument) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  const Partial good = x.partial();
  const TensorView o = out.partial().o;
  const TensorView lse = out.partial().lse;
  refusal({}, o, lse, "partials is empty");
  Partial bad = good;
  bad.o.shape[3] = 1;
  refusal({good, bad}, o, lse, "partials[1].o shape is (1, 1, 1, 1)");
  bad = good;
  bad.lse.data = nullptr;
  refusal({bad}, o, lse, "partials[0].lse is null");
  bad = good;
  bad.lse.dtype = DType::kFloat16;
  refusal({bad}, o, lse, "partials[0].lse dtype is fp16");
  TensorView wrong = o;
  wrong.strides[3] = 2;
  refusal({good}, wrong, lse, "o stride of its last axis is 2");
  wrong = o;
  wrong.data = good.o.data;
  wrong.dtype = DType::kFloat16;
  refusal({good}, wrong, lse, "partials[0].o");
  wrong = o;
  wrong.shape[1] = -1;
  refusal({good}, wrong, lse, "o shape is -1");
  EXPECT_EQ(out.o, (std::vector<float>{-7, -7}));
  EXPECT_EQ(out.lse, -7);
}

}  // namespace
