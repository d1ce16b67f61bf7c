// Splits along the keys and merging, from public reports.
#include <algorithm>

#include "support.hpp"

namespace attn::testing {
namespace {

// flashinfer-ai/flashinfer#4051; vllm-project/vllm PR#28181, PR#39148; ROCm/rocMLIR PR#2371;
// Dao-AILab/flash-attention#1076: merging two empty partials gave −inf − (−inf) = NaN; splits without keys
// divided 0 by 0.
class FlashInfer4051 : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(FlashInfer4051, AnyNumberOfSplits) {
  const std::string splits = GetParam() == 0 ? "" : " splits=" + std::to_string(GetParam());
  for (const char* type : kDTypes) {
    for (const std::int64_t sk : {0, 1, 5, 63, 64, 65, 257}) {
      for (const std::int64_t sq : {1, 2}) {
        for (const char* causal : {"", " causal=br"}) {
          expect_line("b2 hq2 hk1 d32 lse sq" + std::to_string(sq) + " sk" + std::to_string(sk) + " " + type +
                      causal + splits);
        }
      }
    }
    expect_line(std::string("b1 hq1 hk1 sq1 sk257 d32 lse ") + type + splits);
  }
}
INSTANTIATE_TEST_SUITE_P(PublicReports, FlashInfer4051, ::testing::Values(0, 1, 2, 3, 7, 8, 128));

struct Half {
  std::vector<float> o;
  std::vector<float> lse;
};

Partial partial_of(Half& half, std::int64_t d) {
  const auto rows = static_cast<std::int64_t>(half.lse.size());
  return {TensorView::bshd(half.o.data(), DType::kFloat32, 1, rows, 1, d),
          TensorView::lse(half.lse.data(), 1, 1, rows)};
}

TEST(PublicReports, FlashInfer4051_MergingEmptyPartials) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Half empty{{0, 0, 0, 0}, {-kInf, -kInf}};
  Half x{{0.1F, -3.3F, 1e-30F, 7e9F}, {-46340.95F, 88.3F}};
  const auto merge = [](std::vector<Partial> partials) {
    Half out{{9, 9, 9, 9}, {9, 9}};
    const Partial target = partial_of(out, 2);
    const Status status = merge_partials(partials, target.o, target.lse);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const Half none = merge({partial_of(empty, 2), partial_of(empty, 2)});
  EXPECT_EQ(none.o, empty.o);
  EXPECT_EQ(none.lse, empty.lse);
  for (const Half& same :
       {merge({partial_of(empty, 2), partial_of(x, 2)}), merge({partial_of(x, 2), partial_of(empty, 2)}),
        merge({partial_of(empty, 2), partial_of(x, 2), partial_of(empty, 2)}), merge({partial_of(x, 2)})}) {
    EXPECT_TRUE(same_bits(same.o, x.o));
    EXPECT_TRUE(same_bits(same.lse, x.lse));
  }
}

// The same: partials over parts of the keys, merged, give the whole call.
TEST(PublicReports, FlashInfer4051_MergedPartsAreTheWhole) {
  const std::string base = "b1 hq1 hk1 sq3 sk90 d8 fp32 lse seed=4";
  verify::Buffers whole(case_of(base));
  verify::RunInfo info;
  ASSERT_TRUE(verify::host_runner()(whole, cpu_plan(), 0xFF, &info).ok());
  std::vector<Half> halves(3);
  std::vector<Partial> partials;
  constexpr std::int64_t kCuts[] = {0, 40, 40, 90};  // the middle part has no keys
  for (std::size_t n = 0; n < 3; ++n) {
    halves[n] = {std::vector<float>(3 * 8), std::vector<float>(3)};
    Tensors t = whole.tensors();
    TensorView k = t.k;
    TensorView v = t.v;
    k.data = static_cast<float*>(k.data) + kCuts[n] * k.strides[1];
    v.data = static_cast<float*>(v.data) + kCuts[n] * v.strides[1];
    k.shape[1] = v.shape[1] = kCuts[n + 1] - kCuts[n];
    partials.push_back(partial_of(halves[n], 8));
    ForwardOptions options;
    options.plan = cpu_plan();
    options.lse = partials.back().lse;
    const Status status = forward(t.q, k, v, partials.back().o, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Half merged{std::vector<float>(3 * 8), std::vector<float>(3)};
  const Partial target = partial_of(merged, 8);
  ASSERT_TRUE(merge_partials(partials, target.o, target.lse).ok());
  const Results want(whole);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(merged.lse[static_cast<std::size_t>(i)], want.lse(0, 0, i), 1e-6);
    for (std::int64_t c = 0; c < 8; ++c) {
      EXPECT_NEAR(merged.o[static_cast<std::size_t>(i * 8 + c)], want.o(0, 0, i, c), 2e-6);
    }
  }
}

// Dao-AILab/flash-attention#2842, PR#2573; flagos-ai/FlagGems#5235; vllm-project/flash-attention PR#87: an
// empty sequence in a batch wrote its LSE at the offset of another layout; the combine step assumed one
// output stride.
TEST(PublicReports, FlashAttention2842_EmptySequencesOfABatch) {
  std::string lens;
  for (int b = 0; b < 64; ++b) {
    const int length = b == 1 || b == 10 ? 0 : 1 + (b * 37) % 64;
    lens += (b == 0 ? "" : ",") + std::to_string(length);
  }
  const std::string packed = " varlen_kv=0 lens_q=1x64 lens_kv=" + lens;
  const std::string padded = " lens_kv=" + lens;
  for (const char* d : {"d64", "d128"}) {
    int turn = 0;
    for (const std::string& entry : {packed, padded, padded + " page=16"}) {
      for (const char* extra :
           {" splits=1", " splits=3", " splits=8 layout=bhsd", " layout=gaps", " splits=3 layout=gaps"}) {
        run_plans(std::string("b64 hq8 hk2 sq1 sk64 lse ") + d + " " + kDTypes[turn++ % 3] + entry + extra,
                  Fills{}, [](const Results& r) {
                    for (std::int64_t b = 0; b < 64; ++b) {
                      for (std::int64_t h = 0; h < 8; ++h) {
                        if (b == 1 || b == 10) {
                          ASSERT_EQ(r.o(b, h, 0), 0.0);
                          ASSERT_EQ(r.lse(b, h, 0), -kInfinity);
                        } else {
                          ASSERT_TRUE(std::isfinite(r.lse(b, h, 0)));
                        }
                      }
                    }
                  });
      }
    }
  }
}

}  // namespace
}  // namespace attn::testing
