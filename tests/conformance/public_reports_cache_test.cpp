// Caches and pages, from public reports.
#include <sstream>

#include "support.hpp"

namespace attn::testing {
namespace {

// Dao-AILab/flash-attention#1745, #1974, #2374; flashinfer-ai/flashinfer#941; vllm-project/vllm PR#936,
// PR#53856: never-written cache slots after a sequence's end hold NaN, and weight 0 times NaN is NaN.
TEST(PublicReports, FlashAttention1745_TailOfTheReportIsNaN) {
  for (const char* type : kDTypes) {
    for (const char* poison : {"", " poison=inf", " poison=huge", " poison=zero"}) {
      for (const char* entry : {"", " page=3", " page=2"}) {
        run_plans(std::string("b2 hq1 hk1 sq1 sk3 d64 lse lens_kv=1,3 ") + type + poison + entry,
                  Fills{constant(0.5), constant(1), constant(1)}, [](const Results& r) {
                    EXPECT_EQ(r.o(0, 0, 0), 1.0);
                    EXPECT_EQ(r.o(1, 0, 0, 63), 1.0);
                    EXPECT_NEAR(r.lse(1, 0, 0), 4.0 + std::log(3.0), 1e-5);
                  });
      }
    }
  }
}

TEST(PublicReports, FlashAttention1745_TailsChangeNotOneBit) {
  for (const char* line : {"b1 hq32 hk8 sq1 sk256 d128 bf16 lse page=256 lens_kv=107",
                           "b1 hq32 hk8 sq5 sk256 d128 fp16 lse page=256 lens_kv=107 causal=br",
                           "b4 hq8 hk8 sq1 sk128 d64 bf16 lse lens_kv=32,64,96,48",
                           "b4 hq8 hk8 sq33 sk128 d64 fp16 lse lens_kv=32,64,96,48",
                           "b4 hq8 hk8 sq33 sk128 d72 fp32 lse lens_kv=32,64,96,48 causal=br",
                           "b4 hq8 hk2 sq1 sk128 d64 bf16 lse lens_kv=32,64,96,48 splits=3"}) {
    expect_line(line);
    for (const PlanOptions& plan : all_levels()) {
      const std::vector<float> zeros = values_of(std::string(line) + " poison=zero", plan);
      for (const char* poison : {" poison=nan", " poison=inf", " poison=huge"}) {
        EXPECT_TRUE(same_bits(values_of(std::string(line) + poison, plan), zeros))
            << plan.cpu_level << ": " << line << poison;
      }
    }
  }
}

// Dao-AILab/flash-attention#828, PR#824; flashinfer-ai/flashinfer#4347; microsoft/onnxruntime-genai PR#2568:
// only page sizes of a multiple of 256; pages over 128 wrong past 4096 tokens; 768 refused at run time.
class FlashAttention828 : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(FlashAttention828, AnyPageSize) {
  const std::int64_t page = GetParam();
  std::ostringstream line;
  const std::int64_t below = std::max<std::int64_t>(page - 1, 0);
  line << "b8 hq8 hk2 sq1 sk6144 d128 lse page=" << page << " shared=2 lens_kv=6144,1," << below << ","
       << page << "," << page + 1 << ",4095,4096,4097 ";
  verify::CheckOptions options;
  options.max_scores = 4e5;
  const std::string type = kDTypes[page % 3];
  expect_line(line.str() + type, options);
  // Several queries, causal, across pages.
  std::ostringstream causal;
  causal << "b3 hq8 hk2 sq33 sk900 d64 causal=br lse page=" << page
         << " lens_kv=" << std::min<std::int64_t>(page + 1, 900) << ",900,"
         << std::min<std::int64_t>(page, 900);
  for (const char* t : kDTypes) {
    expect_line(causal.str() + " " + t);
  }
}

// More spare pages change the order in which pages are dealt out, and nothing else.
TEST_P(FlashAttention828, OrderOfPagesChangesNotOneBit) {
  const std::string base =
      "b2 hq4 hk2 sq9 sk300 d64 causal=br lse lens_kv=300,129 page=" + std::to_string(GetParam()) + " ";
  for (const char* type : kDTypes) {
    const std::int64_t pages = case_of(base + type).problem.num_pages;
    for (const PlanOptions& plan : all_levels()) {
      const std::vector<float> first = values_of(base + type, plan);
      for (const std::int64_t more : {1, 5}) {
        EXPECT_TRUE(same_bits(values_of(base + type + " pages=" + std::to_string(pages + more), plan), first))
            << plan.cpu_level << " " << type;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(PublicReports, FlashAttention828,
                         ::testing::Values(1, 2, 3, 16, 48, 64, 100, 128, 256, 768));

TEST(PublicReports, OnnxRuntimeGenai2568_ManyHeadsOverLongPages) {
  verify::CheckOptions options;
  options.max_scores = 1e5;
  options.random_rows = 16;
  expect_line("b4 hq32 hk2 sq1 sk16384 d256 bf16 lse page=256 lens_kv=1024,4096,8191,16384", options);
}

}  // namespace
}  // namespace attn::testing
