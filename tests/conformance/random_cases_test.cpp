// Seeded random cases over the whole space of problems, layouts and data, at every SIMD level: a fixed list
// of seeds in blocks, and as many more as fit in a few seconds. A failure prints the line that reproduces it.
#include <chrono>
#include <iostream>

#include "support.hpp"

namespace attn::testing {
namespace {

constexpr std::uint64_t kBlock = 40;
constexpr std::uint64_t kBlocks = 20;

void check_seed(std::uint64_t seed, const std::vector<PlanOptions>& levels) {
  const verify::Case c = verify::random_case(seed);
  std::size_t level = 0;
  verify::CheckOptions options;
  options.bitwise = seed % 8 == 0;
  verify::check_each(c, levels, options, verify::host_runner(), [&](const verify::Report& report) {
    EXPECT_TRUE(report.passed) << levels[level].cpu_level << ": " << report.line << "\n  " << report.failure;
    ++level;
    return true;
  });
}

class Random : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Random, BlockOfSeeds) {
  const std::vector<PlanOptions> levels = all_levels();
  for (std::uint64_t n = 0; n < kBlock; ++n) {
    check_seed(GetParam() * kBlock + n, levels);
  }
}
INSTANTIATE_TEST_SUITE_P(Fixed, Random, ::testing::Range<std::uint64_t>(0, kBlocks));

// How many it gets to depends on the machine; the order of the seeds does not.
TEST(RandomTimed, AsManySeedsAsFit) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kTime = std::chrono::seconds(6);
  constexpr std::uint64_t kFirst = 1000000;
  const std::vector<PlanOptions> levels = all_levels();
  const auto start = Clock::now();
  std::uint64_t seed = kFirst;
  while (Clock::now() - start < kTime && !HasFailure()) {
    check_seed(seed++, levels);
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

}  // namespace
}  // namespace attn::testing
