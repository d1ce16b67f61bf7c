// Seeded random cases over the whole space of problems, layouts and data, and over the dense part of it, on
// every plan of this machine: fixed lists of seeds in blocks, and as many more as fit in a few seconds. A
// failure prints the line that reproduces it.
#include <chrono>
#include <iostream>

#include "support.hpp"

namespace attn::testing {
namespace {

constexpr std::uint64_t kBlock = 40;
constexpr std::uint64_t kBlocks = 20;

constexpr std::uint64_t kDenseBlocks = 8;
constexpr double kMaxScores = 65536;

void check_seed(std::uint64_t seed, verify::Space space = verify::Space::kAll) {
  const verify::Case c = verify::random_case(seed, kMaxScores, space);
  const std::vector<PlanOptions> plans = all_plans(c.problem);
  std::size_t n = 0;
  verify::CheckOptions options;
  options.bitwise = seed % 8 == 0;
  verify::check_each(c, plans, options, verify::host_runner(), [&](const verify::Report& report) {
    EXPECT_TRUE(report.passed) << name_of(plans[n]) << ": " << report.line << "\n  " << report.failure;
    ++n;
    return true;
  });
  EXPECT_EQ(n, plans.size());
}

class Random : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Random, BlockOfSeeds) {
  for (std::uint64_t n = 0; n < kBlock; ++n) {
    check_seed(GetParam() * kBlock + n);
  }
}
INSTANTIATE_TEST_SUITE_P(Fixed, Random, ::testing::Range<std::uint64_t>(0, kBlocks));

class RandomDense : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomDense, BlockOfSeeds) {
  for (std::uint64_t n = 0; n < kBlock / 2; ++n) {
    check_seed(500000 + GetParam() * kBlock + n, verify::Space::kDense);
  }
}
INSTANTIATE_TEST_SUITE_P(Fixed, RandomDense, ::testing::Range<std::uint64_t>(0, kDenseBlocks));

// How many it gets to depends on the machine; the order of the seeds does not.
TEST(RandomTimed, AsManySeedsAsFit) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kTime = std::chrono::seconds(6);
  constexpr std::uint64_t kFirst = 1000000;
  const auto start = Clock::now();
  std::uint64_t seed = kFirst;
  while (Clock::now() - start < kTime && !HasFailure()) {
    check_seed(seed++);
  }
  std::cout << seed - kFirst << " seeds\n";
  EXPECT_GT(seed, kFirst);
}

// The generator reaches every feature: a space that silently shrank would make the tests above worth less.
TEST(RandomSpace, CoversEveryFeature) {
  std::int64_t causal = 0, window = 0, softcap = 0, sinks = 0, alibi = 0, varlen_q = 0, varlen_kv = 0,
               used = 0;
  std::int64_t paged = 0, append = 0, rotary = 0, splits = 0, invariant = 0, layouts = 0, kinds = 0,
               empty = 0;
  constexpr std::uint64_t kSeeds = 400;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const verify::Case c = verify::random_case(seed);
    const Problem& p = c.problem;
    causal += p.causal;
    window += p.window_left >= 0 || p.window_right >= 0;
    softcap += p.softcap > 0;
    sinks += p.sinks;
    alibi += p.alibi;
    varlen_q += p.varlen_q;
    varlen_kv += p.varlen_kv;
    used += p.seqused_kv;
    paged += p.page_size > 0;
    append += p.seqlen_new > 0;
    rotary += p.rotary_dim > 0;
    splits += p.num_splits > 1;
    invariant += p.batch_invariant;
    layouts += c.layout != verify::Layout::kBshd;
    kinds += c.data != verify::Data::kNormal;
    empty += verify::visible_scores(c) == 0;
  }
  for (const std::int64_t count : {causal, window, softcap, sinks, alibi, varlen_q, varlen_kv, used, paged,
                                   append, rotary, splits, invariant, layouts, kinds, empty}) {
    EXPECT_GT(count, 8);
  }
}

// The dense space lies within the reach of a dense kernel, but for nothing, and holds every option of it.
TEST(RandomSpace, DenseCasesAreDense) {
  std::int64_t causal = 0, window = 0, softcap = 0, sinks = 0, alibi = 0, layouts = 0, kinds = 0, empty = 0,
               pairs = 0;
  std::int64_t tall = 0, wide = 0, odd_sinks = 0, odd_slopes = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const verify::Case c = verify::random_case(seed, 2 * kMaxScores, verify::Space::kDense);
    const Problem& p = c.problem;
    EXPECT_STREQ(outside_cuda(p), "") << verify::to_string(c);
    causal += p.causal;
    window += p.window_left >= 0 || p.window_right >= 0;
    softcap += p.softcap > 0;
    sinks += p.sinks;
    alibi += p.alibi;
    layouts += c.layout != verify::Layout::kBshd;
    kinds += c.data != verify::Data::kNormal;
    empty += verify::visible_scores(c) == 0;
    pairs += p.head_dim_qk != p.head_dim_v;
    tall += p.seqlen_q > 192;
    wide += p.seqlen_kv > 192;
    odd_sinks += c.sinks != verify::Sinks::kNormal;
    odd_slopes += c.slopes != verify::Slopes::kPaper;
  }
  for (const std::int64_t count : {causal, window, softcap, sinks, alibi, layouts, kinds, empty, pairs, tall,
                                   wide, odd_sinks, odd_slopes}) {
    EXPECT_GT(count, 8);
  }
}

}  // namespace
}  // namespace attn::testing
