// Head dims, odd lengths and head ratios, from public reports.
#include "support.hpp"
#include "verify/random.hpp"

namespace attn::testing {
namespace {

// flashinfer-ai/flashinfer#4299; turboderp-org/exllamav3 PR#316; triton-lang/triton#621;
// Dao-AILab/flash-attention#1347; microsoft/onnxruntime#28357: head dims that are no multiple of a tile
// silently wrong or not repeatable, only the first 64 channels used, V's dim different from QK's.
class FlashInfer4299 : public ::testing::TestWithParam<std::int64_t> {};

// Q and K are 0 but for the last channel, which makes the logit of key 5 20; V is 1 at key 5 alone. A kernel
// that drops tail channels gives 1/64.
TEST_P(FlashInfer4299, LastChannelCounts) {
  const std::int64_t d = GetParam();
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  const auto in_tail = [d](std::int64_t c, float value) { return c == d - 1 ? value : 0.0F; };
  const Fills fills{[&](const verify::RowId&, std::int64_t c) { return in_tail(c, 4.0F); },
                    [&](const verify::RowId& id, std::int64_t c) {
                      return in_tail(c, id.pos == 5 ? 20.0F / (4.0F * scale) : 0.0F);
                    },
                    [](const verify::RowId& id, std::int64_t) { return id.pos == 5 ? 1.0F : 0.0F; }};
  for (const char* type : kDTypes) {
    run_plans("sq3 sk64 lse d" + std::to_string(d) + " " + type, fills, [&](const Results& r) {
      // K is rounded to the dtype, so that the logit is 20 to three digits in bf16.
      const double weight = std::exp(20.0) / (std::exp(20.0) + 63.0);
      for (std::int64_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(r.o(0, 0, i), weight, 1e-6);
        EXPECT_NEAR(r.o(0, 0, i, d - 1), weight, 1e-6);
        EXPECT_NEAR(r.lse(0, 0, i), 20.0, 0.08);
      }
    });
  }
}
INSTANTIATE_TEST_SUITE_P(PublicReports, FlashInfer4299,
                         ::testing::Values(1, 7, 8, 31, 32, 40, 59, 63, 64, 65, 72, 80, 96, 112, 120, 128,
                                           136, 160, 176, 192, 224, 256, 512));

TEST(PublicReports, FlashInfer4299_FourCallsTheSameBits) {
  for (const char* line : {"sq512 sk512 hq16 hk16 d72 fp16", "sq257 sk257 hq2 hk2 d96 fp16 causal=br lse",
                           "sq257 sk257 hq2 hk2 d72 bf16 causal=br lse", "sq65 sk130 d192 dv128 bf16 lse",
                           "sq65 sk130 d64 dv512 fp16 lse", "sq65 sk130 d128 dv64 fp32 lse"}) {
    for (const PlanOptions& plan : all_plans(line)) {
      const std::vector<float> first = values_of(line, plan, 0x00);
      for (const std::uint8_t fill : {std::uint8_t{0xFF}, std::uint8_t{0x7F}, std::uint8_t{0x3C}}) {
        EXPECT_TRUE(same_bits(values_of(line, plan, fill), first)) << name_of(plan) << " " << line;
      }
    }
  }
}

// jax-ml/jax#27224; flashinfer-ai/flashinfer PR#5090; 66RING/tiny-flash-attention#12: lengths that do not
// fill the last tile: padded keys score 0 and take weight exp(0). All true logits are −30 here, so that even
// one padded key is seen.
void expect_logits_of_minus_30(std::int64_t sq, std::int64_t sk, const std::string& rest) {
  const Fills fills{[](const verify::RowId&, std::int64_t c) { return c == 0 ? 1.0F : 0.0F; },
                    constant(-240.0F), constant(1.0F)};
  const std::string line =
      "sq" + std::to_string(sq) + " sk" + std::to_string(sk) + " d64 scale=0.125 lse " + rest;
  run_plans(line, fills, [&](const Results& r) {
    for (const std::int64_t i : {std::int64_t{0}, sq - 1}) {
      ASSERT_EQ(r.o(0, 0, i), 1.0) << line;
      ASSERT_EQ(r.o(0, 0, i, 63), 1.0) << line;
      ASSERT_NEAR(r.lse(0, 0, i), std::log(static_cast<double>(sk)) - 30.0, 1e-5) << line;
    }
  });
}

TEST(PublicReports, Jax27224_PaddedKeysOfTheLastTile) {
  for (const char* type : kDTypes) {
    expect_logits_of_minus_30(1, 65, type);  // LSE = ln 65 − 30 = −25.825613
    expect_line("hq8 hk8 sq192 sk192 d16 lse " + std::string(type));
  }
  int turn = 0;
  for (std::int64_t n = 1; n <= 513; n = n == 130 ? 191 : n == 193 ? 255 : n == 257 ? 511 : n + 1) {
    const std::string type = kDTypes[turn++ % 3];
    expect_logits_of_minus_30(1, n, type);
    expect_logits_of_minus_30(n, 3, type);
    expect_logits_of_minus_30(n, n, type);
  }
}

// pytorch/pytorch#151359; NVIDIA/TensorRT-LLM PR#6573; Dao-AILab/flash-attention PR#2186, PR#2528: head
// ratios that are no power of 2 refused; more than 8 per group wrong; packed groups used the wrong causal
// limit.
class PyTorch151359 : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(PyTorch151359, AnyRatioOfHeads) {
  const std::int64_t ratio = GetParam();
  const Fills probe{
      {}, {}, [](const verify::RowId& id, std::int64_t) { return static_cast<float>(id.h + 1); }};
  verify::CheckOptions options;
  options.max_scores = 2e5;
  int turn = 0;
  for (const std::int64_t hk : {1, 2, 3}) {
    for (const std::int64_t sq : {1, 5, 88, 130}) {
      const std::string type = kDTypes[turn++ % 3];
      // A mean of equal values is that value to the last bit of a 16-bit dtype.
      const double tolerance = type == "fp32" ? 3 * 0x1p-20 : 0.0;
      const std::string line = "hq" + std::to_string(hk * ratio) + " hk" + std::to_string(hk) + " sq" +
                               std::to_string(sq) + " sk300 d16 causal=br lse " + type;
      const auto inspect = [&](const Results& r) {
        for (std::int64_t h = 0; h < hk * ratio; ++h) {
          const std::int64_t head_kv = h / ratio;
          const auto want = static_cast<double>(1 + head_kv);
          ASSERT_NEAR(r.o(0, h, 0), want, tolerance) << line << " head " << h;
          ASSERT_NEAR(r.o(0, h, sq - 1, 15), want, tolerance) << line << " head " << h;
        }
      };
      run_plans(line, probe, inspect, options);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(PublicReports, PyTorch151359, ::testing::Values(1, 3, 5, 6, 7, 9, 12, 16, 21, 71));

TEST(PublicReports, PyTorch151359_ReportedDecodeShapes) {
  for (const char* type : kDTypes) {
    expect_line(std::string("hq12 hk2 sq1 sk4096 d16 lse ") + type);
    expect_line(std::string("hq96 hk8 sq1 sk300 d128 lse ") + type);
  }
}

// The same: grouped heads give what K and V repeated for each query head give.
TEST(PublicReports, PyTorch151359_EqualsRepeatedHeads) {
  const auto normal = [](std::uint64_t stream) {
    return [stream](const verify::RowId& id, std::int64_t c) {
      return static_cast<float>(
          verify::random_normal(3, stream, static_cast<std::uint64_t>(id.pos * 64 + c)));
    };
  };
  const Fills fills{{}, normal(1), normal(2)};
  for (const char* type : kDTypes) {
    std::vector<std::vector<float>> grouped;
    const std::string rest = std::string(" sq33 sk300 d64 causal=br lse ") + type;
    run_plans("hq7 hk1" + rest, fills, [&](const Results& r) { grouped.push_back(r.all()); });
    std::size_t level = 0;
    run_plans("hq7 hk7" + rest, fills, [&](const Results& r) {
      const std::vector<float> repeated = r.all();
      ASSERT_EQ(repeated.size(), grouped.at(level).size());
      for (std::size_t n = 0; n < repeated.size(); ++n) {
        ASSERT_NEAR(repeated[n], grouped[level][n], std::string(type) == "fp32" ? 1e-5 : 1e-2) << n;
      }
      ++level;
    });
  }
}

}  // namespace
}  // namespace attn::testing
