// Masks, alignment and empty rows, from public reports: each test is named by the report and holds its
// numbers.
#include "support.hpp"

namespace attn::testing {
namespace {

const std::vector<std::string> kTypes(std::begin(kDTypes), std::end(kDTypes));

// Of an LSE: a base-2 logarithm or a key too many is far outside, the rounding of any kernel inside.
constexpr double kLse = 1e-5;

// Zero logits and V = index of the key: O is the mean index of the visible keys, LSE the logarithm of their
// number.
const Fills kMeanIndex{constant(0), constant(0), key_index()};

// Dao-AILab/flash-attention#402, #282; pytorch/pytorch#103082, #144858: causal with fewer queries than keys
// tied query 0 to key 0, so that decoding with a cache looked at the oldest keys only.
TEST(PublicReports, FlashAttention402_CausalFewerQueriesThanKeys) {
  for (const std::string& type : kTypes) {
    run_plans("sq2 sk5 d8 causal=br lse " + type, kMeanIndex, [](const Results& r) {
      for (std::int64_t c = 0; c < 8; ++c) {
        EXPECT_NEAR(r.o(0, 0, 0, c), 1.5, 1e-6);  // [0, 0.5] would be top-left
        EXPECT_NEAR(r.o(0, 0, 1, c), 2.0, 1e-6);
      }
      EXPECT_NEAR(r.lse(0, 0, 0), 1.386294, kLse);
      EXPECT_NEAR(r.lse(0, 0, 1), 1.609438, kLse);
    });
    run_plans("sq1 sk300 d8 causal=br lse " + type, kMeanIndex, [&](const Results& r) {
      EXPECT_NEAR(r.o(0, 0, 0), 149.5, type == "bf16" ? 0.5 : 0.1);
      EXPECT_NEAR(r.lse(0, 0, 0), std::log(300.0), 1e-5);
    });
    expect_line("sq130 sk449 d8 causal=br lse " + type);
  }
}

// The same: one query that sees all keys is the call without the flag, bit for bit by one kernel.
TEST(PublicReports, FlashAttention402_OneQueryIsTheNonCausalCall) {
  for (const std::string& type : kTypes) {
    const std::string causal = "hq4 hk2 sq1 sk300 d64 causal=br lse " + type;
    for (const PlanOptions& plan : all_plans(causal)) {
      EXPECT_TRUE(same_bits(values_of(causal, plan), values_of("hq4 hk2 sq1 sk300 d64 lse " + type, plan)))
          << name_of(plan) << " " << type;
    }
  }
}

// Dao-AILab/flash-attention#1778; flashinfer-ai/flashinfer#4452: more queries than keys under causal left the
// top rows unwritten or with a finite LSE. pytorch/pytorch#181645, flashinfer-ai/flashinfer#4485: LSE of
// base 2.
TEST(PublicReports, FlashAttention1778_CausalMoreQueriesThanKeys) {
  const Fills fills{constant(0), constant(0),
                    [](const verify::RowId& id, std::int64_t) { return id.pos == 0 ? 1.0F : 3.0F; }};
  for (const std::string& type : kTypes) {
    for (const char* entry : {"", " varlen_q=0 varlen_kv=0 lens_q=5 lens_kv=2", " page=1 lens_kv=2",
                              " page=16 lens_kv=2", " splits=2"}) {
      run_plans("sq5 sk2 d8 causal=br lse " + type + entry, fills, [](const Results& r) {
        constexpr double kO[] = {0, 0, 0, 1, 2};
        constexpr double kWant[] = {-kInfinity, -kInfinity, -kInfinity, 0, 0.693147};
        for (std::int64_t i = 0; i < 5; ++i) {
          EXPECT_EQ(r.o(0, 0, i, 7), kO[i]) << i;
          if (i < 3) {
            EXPECT_EQ(r.lse(0, 0, i), kWant[i]) << i;
          } else {
            EXPECT_NEAR(r.lse(0, 0, i), kWant[i], kLse) << i;
          }
        }
      });
    }
  }
}

TEST(PublicReports, FlashAttention1778_TopHalfOf2048RowsIsEmpty) {
  verify::CheckOptions options;
  options.max_scores = 1e6;  // chosen rows: the halves are looked at below
  for (const char* entry :
       {"bf16", "fp16 lens_q=2048 lens_kv=1024 varlen_kv=0", "fp32 page=64 lens_kv=1024"}) {
    run_plans(
        std::string("sq2048 sk1024 d32 causal=br lse ") + entry, Fills{},
        [](const Results& r) {
          for (std::int64_t i = 0; i < 2048; ++i) {
            if (i < 1024) {
              ASSERT_EQ(r.o(0, 0, i, i % 32), 0.0) << i;
              ASSERT_EQ(r.lse(0, 0, i), -kInfinity) << i;
            } else {
              ASSERT_TRUE(std::isfinite(r.lse(0, 0, i))) << i;
            }
          }
        },
        options);
  }
}

// jax-ml/jax PR#39576; Dao-AILab/flash-attention#2574; jax-ml/jax#32300; related
// NVIDIA/TransformerEngine#3528: window (L, 0) without the causal flag saw the future; a right bound of 0 was
// taken for "not set".
TEST(PublicReports, Jax39576_WindowDoesNotNeedTheCausalFlag) {
  for (const std::string& type : kTypes) {
    for (const char* align : {"br", "tl"}) {
      const std::string base = "sq6 sk6 d8 lse " + type + " align=" + align;
      run_plans(base + " window=2,0", kMeanIndex, [](const Results& r) {
        constexpr double kO[] = {0, 0.5, 1, 2, 3, 4};  // the leak gives 2.5 in row 0
        for (std::int64_t i = 0; i < 6; ++i) {
          EXPECT_NEAR(r.o(0, 0, i), kO[i], 1e-6) << i;
        }
      });
      run_plans(base + " window=0,0", kMeanIndex, [](const Results& r) {
        for (std::int64_t i = 0; i < 6; ++i) {
          EXPECT_EQ(r.o(0, 0, i), static_cast<double>(i));
          EXPECT_NEAR(r.lse(0, 0, i), 0.0, kLse);
        }
      });
    }
  }
}

TEST(PublicReports, Jax39576_FiveSpellingsOfCausal) {
  for (const std::string& type : kTypes) {
    for (const char* window : {"", " window=-1,-1", " window=-1,0", " window=6,0", " window=5,0"}) {
      run_plans("sq6 sk6 d8 lse causal=br " + type + window, kMeanIndex, [](const Results& r) {
        for (std::int64_t i = 0; i < 6; ++i) {
          EXPECT_NEAR(r.o(0, 0, i), 0.5 * static_cast<double>(i), 1e-6);
          EXPECT_NEAR(r.lse(0, 0, i), std::log(static_cast<double>(i + 1)), kLse);
        }
      });
    }
  }
}

// pytorch/pytorch#127055, PR#130014: a long sequence whose old tokens are masked: the first blocks of late
// rows are fully masked, and exp(−inf + inf) made NaN from some row on.
TEST(PublicReports, PyTorch127055_OldTokensMasked) {
  const Fills ones{constant(1), constant(1), constant(1)};
  for (const std::string& type : kTypes) {
    run_plans("sq600 sk600 d2 align=br window=9,0 lse " + type, ones, [](const Results& r) {
      const double logit = 2.0 / std::sqrt(2.0);
      for (std::int64_t i = 0; i < 600; ++i) {
        ASSERT_EQ(r.o(0, 0, i, 1), 1.0) << i;
        ASSERT_NEAR(r.lse(0, 0, i), logit + std::log(std::min<double>(static_cast<double>(i) + 1, 10)), 1e-5)
            << i;
      }
    });
    for (const char* window : {"0,0", "9,0", "511,0"}) {
      verify::CheckOptions options;
      options.max_scores = 1e6;
      expect_line("sq600 sk600 d64 align=br lse window=" + std::string(window) + " " + type);
      expect_line("sq5000 sk5000 d64 align=br lse window=" + std::string(window) + " " + type, options);
    }
  }
}

TEST(PublicReports, PyTorch127055_WindowOfOneKeyCopiesV) {
  for (const std::string& type : kTypes) {
    for (const std::int64_t n : {600, 5000}) {
      const std::string line =
          "sq" + std::to_string(n) + " sk" + std::to_string(n) + " d64 align=br window=0,0 " + type;
      for (const PlanOptions& plan : all_levels()) {
        verify::Buffers buffers(case_of(line));
        verify::RunInfo info;
        ASSERT_TRUE(verify::host_runner()(buffers, plan, 0xFF, &info).ok());
        // O and V have the same compact layout.
        ASSERT_EQ(std::memcmp(buffers.tensors().o.data, buffers.tensors().v.data,
                              static_cast<std::size_t>(n) * 64 * size_of(buffers.problem().dtype)),
                  0)
            << plan.cpu_level << " " << line;
      }
    }
  }
}

}  // namespace
}  // namespace attn::testing
