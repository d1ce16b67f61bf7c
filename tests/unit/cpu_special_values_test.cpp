// What no result depends on, special values included, on every level: the sign of NaN, the caller's rounding
// mode, trapped exceptions and flushing of subnormals; and infinite sinks.
#include <gtest/gtest.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CpuSpecialValues : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] PlanOptions options(int threads = 1) const { return cpu_options(GetParam(), threads); }
};

// Logits whose rounding is worth thousands of nats (133120² · √64 = 1.4e11, as in PyTorch issue 121558), for
// one row and for blocks of them: equal ones share the weight equally, whatever their neighbours hold.
TEST_P(CpuSpecialValues, EnormousLogits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {1, 40}) {
      Problem p;
      p.dtype = dtype;
      p.seqlen_q = rows;
      p.seqlen_kv = 300;
      p.head_dim_qk = 64;
      p.head_dim_v = 64;
      p.want_lse = true;
      DenseCase c(p);
      for (std::int64_t i = 0; i < rows * 64; ++i) {
        const bool ordinary = i / 64 % 2 == 1;  // every other row, whose logits are 520
        core::store_element(c.q.data(), dtype, i, ordinary ? 0x1p-11F : 133120.0F);
      }
      for (std::int64_t i = 0; i < 300 * 64; ++i) {
        core::store_element(c.k.data(), dtype, i, 133120.0F);
        core::store_element(c.v.data(), dtype, i, 3.0F);
      }
      ASSERT_TRUE(c.run(options()).ok());
      for (std::int64_t i = 0; i < rows; ++i) {
        EXPECT_NEAR(core::load_element(c.o.data(), dtype, i * 64 + i % 64), 3.0, 1e-5) << i;
        const double logit = (i % 2 == 1 ? 0x1p-11 : 133120.0) * 133120.0 * 8.0;
        EXPECT_NEAR(c.lse[static_cast<std::size_t>(i)] / (logit + std::log(300.0)), 1.0, 2e-6) << i;
      }
    }
  }
}

// Rule 11 for results that are not finite: one NaN, whatever its rows share a kernel with. Rows are grouped
// otherwise with two threads than with one.
TEST_P(CpuSpecialValues, NansHaveOneSign) {
  for (const float poison : {kNan, -kNan, kInfinity}) {
    Problem p = causal_problem(61, 400);
    DenseCase one(p);
    DenseCase two(p);
    for (DenseCase* c : {&one, &two}) {
      core::store_element(c->k.data(), p.dtype, 350 * p.head_dim_qk + 3, kInfinity);
      core::store_element(c->v.data(), p.dtype, 20 * p.head_dim_v + 7, poison);
      core::store_element(c->v.data(), p.dtype, 300 * p.head_dim_v + 7, -poison);
    }
    ASSERT_TRUE(one.run(options(1)).ok());
    ASSERT_TRUE(two.run(options(2)).ok());
    int nans = 0;
    for (std::size_t i = 0; i < one.o.size() / sizeof(float); ++i) {
      const float x = core::load_element(one.o.data(), p.dtype, static_cast<std::int64_t>(i));
      nans += std::isnan(x) ? 1 : 0;
      EXPECT_FALSE(std::isnan(x) && std::bit_cast<std::uint32_t>(x) != 0x7FC00000U) << i;
    }
    EXPECT_GT(nans, 0);
    EXPECT_EQ(one.o, two.o);
    EXPECT_EQ(std::memcmp(one.lse.data(), two.lse.data(), one.lse.size() * sizeof(float)), 0);
  }
}

// The caller's rounding mode, trapped exceptions (SIGFPE would end the test) and, on x86, flushing of
// subnormals change no bit and are the caller's again afterwards.
TEST_P(CpuSpecialValues, CallersFloatEnvironmentHasNoInfluence) {
  for (const int threads : {1, 2}) {
    Problem p = causal_problem(61, 400);
    DenseCase plain(p);
    DenseCase strange(p);
    for (DenseCase* c : {&plain, &strange}) {
      for (std::int64_t i = 0; i < 400 * p.head_dim_v; ++i) {
        core::store_element(c->v.data(), p.dtype, i, static_cast<float>(i % 7) * 1e-39F);
      }
    }
    ASSERT_TRUE(plain.run(options(threads)).ok());
    Plan plan;
    ASSERT_TRUE(make_plan(p, options(threads), &plan).ok());
    const Floats workspace(plan.workspace_bytes() / sizeof(float) + 1);
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetround(FE_UPWARD);
    ::feenableexcept(FE_INVALID | FE_OVERFLOW | FE_DIVBYZERO);  // does nothing where the CPU has no traps
    const int trapped = ::fegetexcept();
#if defined(__SSE__)
    _mm_setcsr(_mm_getcsr() | 0x8040U);  // FTZ, DAZ
    const unsigned mode = _mm_getcsr();
#endif
    const Status status = attn::run(plan, strange.t, workspace.data(), plan.workspace_bytes());
#if defined(__SSE__)
    const unsigned mode_after = _mm_getcsr();
#endif
    const int rounding = std::fegetround();
    const int trapped_after = ::fegetexcept();
    std::fesetenv(&before);
    ASSERT_TRUE(status.ok()) << status.message();
#if defined(__SSE__)
    EXPECT_EQ(mode_after & ~0x3FU, mode & ~0x3FU);  // less the sticky flags, which oneTBB clears
#endif
    EXPECT_EQ(rounding, FE_UPWARD);
    EXPECT_EQ(trapped_after, trapped);
    EXPECT_EQ(plain.o, strange.o);
    EXPECT_EQ(std::memcmp(plain.lse.data(), strange.lse.data(), plain.lse.size() * sizeof(float)), 0);
  }
}

// An infinite sink spoils O; an LSE that leaves it out is that of the keys.
TEST_P(CpuSpecialValues, InfiniteSinkThatTheLseLeavesOut) {
  Problem p = causal_problem(5, 40);
  p.sinks = true;
  p.lse_with_sink = false;
  DenseCase c(p);
  const std::vector<float> sinks(static_cast<std::size_t>(p.heads_q), kInfinity);
  c.t.sinks = sinks.data();
  ASSERT_TRUE(c.run(options()).ok());
  Problem without = p;
  without.sinks = false;
  DenseCase keys(without);
  ASSERT_TRUE(keys.run(options()).ok());
  EXPECT_EQ(c.lse, keys.lse);
  EXPECT_TRUE(std::isnan(core::load_element(c.o.data(), p.dtype, 0)));
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuSpecialValues, testing::ValuesIn(runnable_levels()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace attn::cpu
