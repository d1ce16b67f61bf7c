// The self-test that the command runs: its counts, its callback, and that a broken backend fails it.
#include "verify/selftest.hpp"

#include "support.hpp"

namespace attn::testing {
namespace {

TEST(Selftest, PassesAndCounts) {
  verify::SelftestOptions options;
  options.random_cases = 5;
  std::int64_t calls = 0;
  std::int64_t total = 0;
  options.progress = [&](const verify::SelftestProgress& progress) {
    ++calls;
    EXPECT_EQ(progress.done, calls);
    EXPECT_NE(progress.last, nullptr);
    total = progress.total;
    return true;
  };
  const verify::SelftestSummary summary = verify::selftest(options);
  for (const verify::Report& failure : summary.failures) {
    ADD_FAILURE() << failure.kernel << ": " << failure.line << "\n  " << failure.failure;
  }
  EXPECT_EQ(summary.failed, 0);
  EXPECT_EQ(summary.passed + summary.refused, calls);
  EXPECT_EQ(calls, total);
  EXPECT_GE(summary.passed, 70 * static_cast<std::int64_t>(all_levels().size()));
  EXPECT_LE(summary.max_ratio_o, 1.0);
  EXPECT_FALSE(summary.worst_line.empty());
}

TEST(Selftest, StopsWhenAskedTo) {
  verify::SelftestOptions options;
  options.progress = [](const verify::SelftestProgress& progress) { return progress.done < 3; };
  const verify::SelftestSummary summary = verify::selftest(options);
  EXPECT_TRUE(summary.stopped);
  EXPECT_EQ(summary.passed + summary.failed + summary.refused, 3);
}

TEST(Selftest, FailsABrokenBackend) {
  verify::SelftestOptions options;
  options.plans = {cpu_plan()};
  options.random_cases = 0;
  options.runner = [](verify::Buffers& buffers, const PlanOptions& plan, std::uint8_t fill,
                      verify::RunInfo* info) {
    Status status = verify::host_runner()(buffers, plan, fill, info);
    if (buffers.tensors().o.num_elements() > 0) {
      core::store_element(buffers.tensors().o.data, buffers.problem().dtype, 0, 1e30F);
    }
    return status;
  };
  const verify::SelftestSummary summary = verify::selftest(options);
  EXPECT_GT(summary.failed, 60);
  EXPECT_EQ(static_cast<std::int64_t>(summary.failures.size()), summary.failed);
}

}  // namespace
}  // namespace attn::testing
