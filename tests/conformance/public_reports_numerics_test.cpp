// Numerics, from public reports: false infinities, overflow, softcap, negative scales.
#include "support.hpp"

namespace attn::testing {
namespace {

// flashinfer-ai/flashinfer#4267, #4450, #4451: "minus infinity" was a finite −5e4, so that rows whose raw
// logits are all lower came out as zeros with a false LSE.
TEST(PublicReports, FlashInfer4267_LogitsBelowEveryFalseInfinity) {
  for (const char* type : kDTypes) {
    for (const char* entry :
         {"", " page=16 lens_kv=1", " varlen_q=0 varlen_kv=0 lens_q=1 lens_kv=1", " splits=3"}) {
      run_plans(std::string("sq1 sk1 d128 lse ") + type + entry,
                Fills{constant(64), constant(-64), constant(1)}, [](const Results& r) {
                  EXPECT_EQ(r.o(0, 0, 0), 1.0);
                  EXPECT_EQ(r.o(0, 0, 0, 127), 1.0);
                  EXPECT_NEAR(r.lse(0, 0, 0), -524288.0 / std::sqrt(128.0), 0.1);  // −46340.950
                });
    }
  }
}

TEST(PublicReports, FlashInfer4267_MeanOverTheLessNegativeHalf) {
  const Fills fills{constant(64),
                    [](const verify::RowId& id, std::int64_t) { return id.pos % 2 == 0 ? -64.0F : -63.0F; },
                    [](const verify::RowId& id, std::int64_t) { return static_cast<float>(id.pos % 8); }};
  for (const char* type : kDTypes) {
    for (const char* entry : {"", " causal=br", " page=48 lens_kv=130", " splits=3"}) {
      run_plans(std::string("sq1 sk130 d128 lse ") + type + entry, fills, [&](const Results& r) {
        double mean = 0;
        for (int j = 1; j < 130; j += 2) {
          mean += static_cast<double>(j % 8) / 65.0;
        }
        EXPECT_NEAR(r.o(0, 0, 0), mean, std::string(type) == "bf16" ? 0.02 : 0.003);
        EXPECT_NEAR(r.lse(0, 0, 0), -63.0 * 64 * 128 / std::sqrt(128.0) + std::log(65.0), 0.1);
      });
    }
  }
}

// pytorch/pytorch#121558; vllm-project/vllm PR#56579: very large bf16 inputs gave NaN.
TEST(PublicReports, PyTorch121558_VeryLargeInputs) {
  const Fills fills{constant(133120), constant(133120), constant(133120)};
  for (const char* type : {"bf16", "fp32"}) {
    for (const std::int64_t n : {1, 3, 257}) {
      run_plans("sq1 d64 lse sk" + std::to_string(n) + " " + type, fills, [&](const Results& r) {
        EXPECT_EQ(r.o(0, 0, 0), 133120.0);
        EXPECT_EQ(r.o(0, 0, 0, 63), 133120.0);
        // 133120² · 64 / 8, and ln n far below its last bit.
        EXPECT_NEAR(r.lse(0, 0, 0) / 1.41767475e11, 1.0, 1e-6);
      });
    }
  }
}

// The same: softcap of large logits overflowed inside a hand-made tanh.
TEST(PublicReports, PyTorch121558_SoftcapOfLargeLogits) {
  for (const char* type : kDTypes) {
    for (const float logit : {10000.0F, 4400.0F, 5000.0F, -10000.0F}) {
      // One channel counts and scale = 1: the logit is its k; key 1 has the opposite one.
      const Fills fills{constant(1),
                        [&](const verify::RowId& id, std::int64_t c) {
                          return c > 0 ? 0.0F : id.pos == 0 ? logit : -logit;
                        },
                        [](const verify::RowId& id, std::int64_t) { return id.pos == 0 ? 1.0F : 0.0F; }};
      run_plans(std::string("sq1 sk2 d8 scale=1 softcap=50 lse ") + type, fills, [&](const Results& r) {
        // Capped logits 50 and −50: the weights are 1 and e^−100.
        EXPECT_NEAR(r.o(0, 0, 0), logit > 0 ? 1.0 : 0.0, 1e-12);
        EXPECT_NEAR(r.lse(0, 0, 0), 50.0, 1e-4);
      });
    }
  }
}

// Derived from flashinfer-ai/flashinfer PR#4401 (the maximum kept on raw scores): the maximum of unscaled
// scores is not the maximum when the scale is negative.
TEST(PublicReports, FlashInfer4401_NegativeScale) {
  const Fills fills{constant(8),
                    [](const verify::RowId& id, std::int64_t) { return id.pos % 2 == 0 ? 8.0F : -8.0F; },
                    key_index()};
  for (const char* type : kDTypes) {
    run_plans(std::string("sq1 sk10 d64 scale=-1 lse ") + type, fills, [](const Results& r) {
      EXPECT_EQ(r.o(0, 0, 0), 5.0);                    // the mean of the odd keys
      EXPECT_NEAR(r.lse(0, 0, 0), 4097.609438, 5e-3);  // five steps of fp32
    });
    run_plans(std::string("sq2 sk10 d64 scale=0 causal=br lse ") + type, fills, [](const Results& r) {
      EXPECT_EQ(r.o(0, 0, 0), 4.0);
      EXPECT_EQ(r.o(0, 0, 1), 4.5);
      EXPECT_NEAR(r.lse(0, 0, 1), std::log(10.0), 1e-5);
    });
  }
}

// Dao-AILab/flash-attention PR#1025, #2396; ggml-org/llama.cpp PR#29034; sgl-project/sgl-kernel-xpu PR#491:
// softcap after masking turned −inf into −cap; a cap that did not cap; a cap that was ignored.
TEST(PublicReports, FlashAttention1025_SoftcapBeforeTheMask) {
  for (const char* type : kDTypes) {
    run_plans(std::string("sq1 sk65 d64 softcap=1 lse ") + type, Fills{constant(0), constant(0), constant(1)},
              [](const Results& r) {
                EXPECT_EQ(r.o(0, 0, 0), 1.0);  // 0.737 with padded keys of a 128 tile
                EXPECT_NEAR(r.lse(0, 0, 0), 4.174387, 1e-5);
              });
    const Fills last{constant(0), constant(0),
                     [](const verify::RowId& id, std::int64_t) { return id.pos == 3 ? 100.0F : 0.0F; }};
    run_plans(std::string("sq4 sk4 d64 softcap=1 causal=br lse ") + type, last, [](const Results& r) {
      EXPECT_EQ(r.o(0, 0, 0), 0.0);
      EXPECT_EQ(r.o(0, 0, 1), 0.0);
      EXPECT_EQ(r.o(0, 0, 2), 0.0);
      EXPECT_EQ(r.o(0, 0, 3), 25.0);
    });
  }
}

TEST(PublicReports, FlashAttention2396_ThreeCapsGiveThreeResults) {
  for (const char* type : kDTypes) {
    const std::string base = std::string("hq2 hk1 sq33 sk130 d64 data=sd8 lse ") + type;
    for (const PlanOptions& plan : all_plans(base, Kernels::kChosen)) {
      const auto off = values_of(base, plan);
      const auto five = values_of(base + " softcap=5", plan);
      const auto fifty = values_of(base + " softcap=50", plan);
      EXPECT_FALSE(same_bits(off, five));
      EXPECT_FALSE(same_bits(off, fifty));
      EXPECT_FALSE(same_bits(five, fifty));
    }
    expect_line(base + " softcap=5");
    expect_line(base + " softcap=50");
    expect_line(base + " softcap=15 causal=br");
  }
}

TEST(PublicReports, FlashAttention2396_BadCapsAreRefused) {
  for (const float cap :
       {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem p;
    p.softcap = cap;
    Plan plan;
    const Status status = make_plan(p, cpu_plan(), &plan);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("softcap is "), std::string::npos) << status.message();
    EXPECT_FALSE(plan.valid());
  }
}

// ggml-org/llama.cpp PR#17746, PR#18614, PR#13975: partial sums of P·V kept in fp16 overflow for large V,
// though the true output is in range.
TEST(PublicReports, LlamaCpp17746_SumsBeyondFp16) {
  for (const float value : {60000.0F, 65504.0F, -65504.0F}) {
    for (const std::int64_t sk : {2, 65, 4096, 32768}) {
      for (const char* splits : {" splits=1", " splits=8", ""}) {
        // A chain of thousands of fp32 additions may end a step of fp16 away; never beyond its range.
        const double tolerance = sk > 4096 ? 32.0 : 0.0;
        run_plans("sq1 d64 fp16 lse sk" + std::to_string(sk) + splits,
                  Fills{constant(0), constant(0), constant(value)}, [&](const Results& r) {
                    EXPECT_NEAR(r.o(0, 0, 0), static_cast<double>(value), tolerance) << sk << splits;
                    EXPECT_NEAR(r.o(0, 0, 0, 63), static_cast<double>(value), tolerance);
                  });
      }
    }
  }
}

TEST(PublicReports, LlamaCpp17746_AlternatingSumsCancel) {
  const Fills fills{constant(0), constant(0), [](const verify::RowId& id, std::int64_t) {
                      return id.pos % 2 == 0 ? 60000.0F : -60000.0F;
                    }};
  for (const std::int64_t sk : {2, 4096, 32768}) {
    for (const char* splits : {" splits=1", " splits=8"}) {
      run_plans("sq1 d64 fp16 lse sk" + std::to_string(sk) + splits, fills,
                [](const Results& r) { EXPECT_NEAR(r.o(0, 0, 0), 0.0, 4 * 0x1p-12 * 60000); });
    }
  }
}

}  // namespace
}  // namespace attn::testing
