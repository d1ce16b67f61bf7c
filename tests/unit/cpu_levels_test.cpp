// The choice of a SIMD level: request, then environment, then the best; what does not exist or does not run
// is refused by name. The measured rates are of this machine's order.
#include <gtest/gtest.h>

#include <cstdlib>

#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

class CpuLevels : public testing::Test {
 protected:
  void SetUp() override { unsetenv("ATTN_CPU_LEVEL"); }
  void TearDown() override { unsetenv("ATTN_CPU_LEVEL"); }
};

TEST_F(CpuLevels, TheBaselineIsAlwaysThereAndRuns) {
  ASSERT_FALSE(levels().empty());
  EXPECT_TRUE(levels().back().runnable) << levels().back().name;
}

TEST_F(CpuLevels, TheBestIsTakenWithoutARequest) {
  LevelChoice choice;
  ASSERT_TRUE(choose_level("", &choice).ok());
  EXPECT_EQ(choice.kernels->level, runnable_levels().front());
}

// For emulated CPUs, whose best level is known: cpu_tests.cmake names it.
TEST_F(CpuLevels, TheBestIsTheOneThatThisCpuIsKnownToHave) {
  const char* known = std::getenv("ATTN_TEST_BEST_LEVEL");
  if (known == nullptr) {
    GTEST_SKIP() << "ATTN_TEST_BEST_LEVEL does not name this CPU's best level";
  }
  EXPECT_EQ(runnable_levels().front(), known);
}

TEST_F(CpuLevels, EveryRunnableLevelCanBeAskedFor) {
  for (const std::string& name : runnable_levels()) {
    LevelChoice choice;
    ASSERT_TRUE(choose_level(name, &choice).ok());
    EXPECT_EQ(choice.kernels->level, name);
    ASSERT_EQ(setenv("ATTN_CPU_LEVEL", name.c_str(), 1), 0);
    ASSERT_TRUE(choose_level("", &choice).ok());
    EXPECT_EQ(choice.kernels->level, name);
    Plan plan;
    ASSERT_TRUE(make_plan(Problem(), cpu_options(), &plan).ok());
    EXPECT_EQ(plan.kernel(), "cpu:" + name);
    unsetenv("ATTN_CPU_LEVEL");
  }
}

TEST_F(CpuLevels, ARequestGoesBeforeTheEnvironment) {
  ASSERT_EQ(setenv("ATTN_CPU_LEVEL", "nonsense", 1), 0);
  LevelChoice choice;
  EXPECT_TRUE(choose_level(runnable_levels().back(), &choice).ok());
}

TEST_F(CpuLevels, UnknownNamesAreRefusedWithTheAllowedOnes) {
  LevelChoice choice;
  const Status option = choose_level("avx9", &choice);
  EXPECT_EQ(option.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(option.message().find("cpu_level is avx9"), std::string::npos) << option.message();
  EXPECT_NE(option.message().find(runnable_levels().front()), std::string::npos) << option.message();
  ASSERT_EQ(setenv("ATTN_CPU_LEVEL", "AVX2 ", 1), 0);
  const Status environment = choose_level("", &choice);
  EXPECT_EQ(environment.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(environment.message().find("ATTN_CPU_LEVEL is AVX2 "), std::string::npos)
      << environment.message();
  Plan plan;
  EXPECT_EQ(make_plan(Problem(), cpu_options(), &plan).code(), StatusCode::kInvalidArgument);
}

TEST_F(CpuLevels, ALevelThatThisCpuLacksIsUnavailable) {
  for (const CpuLevel& level : levels()) {
    if (level.runnable) {
      continue;
    }
    LevelChoice choice;
    const Status status = choose_level(level.name, &choice);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find(level.name), std::string::npos);
    EXPECT_EQ(kernels_of(level.name), nullptr);
  }
}

TEST_F(CpuLevels, PeaksAreMeasured) {
  for (const std::string& name : runnable_levels()) {
    const double gflops = measure_fma_peak_gflops(name, 0.02);
    EXPECT_GT(gflops, 0.05) << name;
    EXPECT_LT(gflops, 2000) << name;
  }
  EXPECT_EQ(measure_fma_peak_gflops("avx9", 0.01), 0);
  const double gbs = measure_stream_gbs(1, 0.02);
  EXPECT_GT(gbs, 0.1);
  EXPECT_LT(gbs, 1000);
}

}  // namespace
}  // namespace attn::cpu
