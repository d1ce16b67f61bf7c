// Results depend on nothing but the inputs: not on the number of threads, not on what the workspace held, not
// on the call before.
#include "support.hpp"

namespace attn::testing {
namespace {

class Independence : public ::testing::TestWithParam<const char*> {};

TEST_P(Independence, OfThreadsAndWorkspace) {
  for (const PlanOptions& level : all_levels()) {
    const std::vector<float> first = values_of(GetParam(), cpu_plan(level.cpu_level, 1), 0x00);
    for (const int threads : {1, 2, 3, 1000, 0}) {
      for (const std::uint8_t fill : {std::uint8_t{0xFF}, std::uint8_t{0x7F}, std::uint8_t{0xA5}}) {
        ASSERT_TRUE(same_bits(values_of(GetParam(), cpu_plan(level.cpu_level, threads), fill), first))
            << level.cpu_level << ", " << threads << " threads, workspace of " << int{fill};
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, Independence,
    ::testing::Values("hq4 hk2 sq300 sk300 d64 bf16 causal=br lse",
                      "hq2 hk2 sq130 sk500 d128 fp32 lse data=drift", "hq4 hk1 sq2 sk3000 d64 fp16 lse",
                      "hq4 hk1 sq2 sk3000 d64 fp16 splits=7 lse",
                      "b4 hq4 hk2 sq3 sk900 d64 bf16 causal=br lse lens_kv=900,0,65,1",
                      "b4 hq4 hk2 sq3 sk900 d64 fp32 causal=br invariant lse lens_kv=900,0,65,1",
                      "b3 hq4 hk2 sq65 sk300 d80 fp16 lse page=48 lens_kv=300,1,129 shared=1",
                      "b3 hq6 hk2 sq9 sk300 d64 bf16 causal=br new=9 rotary=64,half lse lens_kv=291,0,64",
                      "b5 hq4 hk2 sq130 sk300 d72 fp32 varlen_kv=0 varlen_q=0 causal=br lse seed=4",
                      "hq3 hk1 sq65 sk200 d192 dv128 bf16 sinks alibi softcap=9 causal=br lse",
                      "hq1 hk1 sq64 sk64 d512 fp32 lse",
                      "hq2 hk1 sq65 sk200 d64 bf16 lse data=nonfinite causal=br"));

// A call between two equal ones leaves no trace in the second.
TEST(IndependenceOfCalls, NothingIsLeftBehind) {
  for (const PlanOptions& level : all_levels()) {
    const std::string line = "hq4 hk2 sq65 sk300 d64 bf16 causal=br lse";
    const std::vector<float> first = values_of(line, level);
    values_of("hq4 hk2 sq65 sk300 d64 bf16 causal=br lse data=nonfinite seed=2", level);
    values_of("b3 hq8 hk1 sq1 sk2000 d256 fp32 splits=8 lse data=huge", level);
    EXPECT_TRUE(same_bits(values_of(line, level), first)) << level.cpu_level;
  }
}

// All levels compute the same to within twice the bound: each is within one of the reference (the judge), and
// the error does not depend on the level by much.
TEST(IndependenceOfLevels, AllAgree) {
  for (const char* line : {"hq4 hk2 sq65 sk300 d64 fp32 causal=br lse",
                           "hq4 hk2 sq65 sk300 d64 bf16 causal=br lse", "hq4 hk2 sq1 sk3000 d64 fp16 lse"}) {
    const verify::Case c = case_of(line);
    const std::vector<PlanOptions> levels = all_levels();
    const std::vector<float> best = values_of(line, levels[0]);
    const double tolerance = c.problem.dtype == DType::kFloat32 ? 1e-5 : 3e-2;
    for (const PlanOptions& level : levels) {
      const std::vector<float> other = values_of(line, level);
      ASSERT_EQ(other.size(), best.size());
      for (std::size_t n = 0; n < best.size(); ++n) {
        ASSERT_NEAR(other[n], best[n], tolerance) << level.cpu_level << ": " << line;
      }
    }
  }
}

}  // namespace
}  // namespace attn::testing
