// Memory beyond inputs and outputs is threads × tile and splits × rows × head_dim_v, never S × S: the peak
// resident memory of this process, of which nothing else is asked, before and after a call at S = 32k.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "support.hpp"

namespace attn::testing {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Largest resident memory so far, in bytes (Linux: VmHWM of /proc/self/status, in KiB); −1 where it is not
// told.
std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      std::int64_t kib = -1;
      std::istringstream(line.substr(6)) >> kib;
      return kib * 1024;
    }
  }
  return -1;
}

// Bytes that the peak grew by in a dense call over memory that was all touched before; the workspace counts.
std::int64_t growth_of(const Problem& p, const PlanOptions& options, std::int64_t* workspace_bytes) {
  const std::int64_t elements = p.seqlen_q * p.heads_q * p.head_dim_qk;
  std::vector<std::uint16_t> q(elements, 0x3C00), k(elements, 0x2C00), v(elements, 0x3C00),
      o(elements, 0x3C00);
  std::vector<float> lse(static_cast<std::size_t>(p.seqlen_q * p.heads_q), 1.0F);
  const auto view = [&](std::vector<std::uint16_t>& x) {
    return TensorView::bshd(x.data(), p.dtype, 1, p.seqlen_q, p.heads_q, p.head_dim_qk);
  };
  Tensors t;
  t.q = view(q);
  t.k = view(k);
  t.v = view(v);
  t.o = view(o);
  t.lse = TensorView::lse(lse.data(), 1, p.heads_q, p.seqlen_q);
  Plan plan;
  EXPECT_TRUE(make_plan(p, options, &plan).ok());
  *workspace_bytes = static_cast<std::int64_t>(plan.workspace_bytes());

  const std::int64_t before = peak_bytes();
  const std::size_t bytes = (plan.workspace_bytes() + 63) / 64 * 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(
      std::aligned_alloc(64, std::max<std::size_t>(64, bytes)), &std::free);
  const Status status = run(plan, t, workspace.get(), plan.workspace_bytes());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(o.front(), 0x3C00) << "a mean of ones is one";
  EXPECT_EQ(o.back(), 0x3C00);
  return peak_bytes() - before;
}

TEST(PeakMemory, DoesNotGrowWithTheSquareOfTheLength) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow memory is counted too";
#endif
  if (peak_bytes() < 0) {
    GTEST_SKIP() << "/proc/self/status does not tell the peak here";
  }
  Problem p;
  ASSERT_TRUE(parse("sq32768 sk32768 d32 fp16 causal=br lse", &p).ok());
  // What the contract allows: a tile's scratch for each of up to 4 threads (a megabyte each is generous: Q,
  // K, V and O of a tile are some 256 rows × 64 floats), and the threads' own stacks and the allocator's
  // slack.
  const PlanOptions options = cpu_plan("", 4);
  const std::int64_t kBound = 24 * kMiB;
  constexpr std::int64_t kSquare = std::int64_t{32768} * 32768 * 4;  // 4 GiB
  static_assert(24 * kMiB * 100 < kSquare);
  std::int64_t workspace = 0;
  const std::int64_t growth = growth_of(p, options, &workspace);
  EXPECT_LE(growth, kBound);
  EXPECT_LE(workspace, kBound);
  std::cout << "peak grew by " << growth / 1024 << " KiB, workspace " << workspace / 1024 << " KiB\n";

  // Splits: partial results of each row, and nothing else.
  ASSERT_TRUE(parse("sq64 sk64 d32 fp16 lse splits=8", &p).ok());
  p.seqlen_q = p.seqlen_kv = 8192;
  const std::int64_t partials = 8 * 8192 * (32 + 2) * 4;
  const std::int64_t split_growth = growth_of(p, options, &workspace);
  EXPECT_LE(workspace, kBound + 2 * partials);
  EXPECT_LE(split_growth, kBound + 2 * partials);
}

// The plan says the same without running: the workspace of a call does not depend on the length.
TEST(PeakMemory, WorkspaceIsThatOfAShortCall) {
  Problem p;
  ASSERT_TRUE(parse("b4 hq32 hk8 sq2048 sk2048 d128 bf16 causal=br lse", &p).ok());
  const auto workspace = [&](std::int64_t length) {
    p.seqlen_q = p.seqlen_kv = length;
    Plan plan;
    EXPECT_TRUE(make_plan(p, cpu_plan("", 4), &plan).ok());
    return static_cast<std::int64_t>(plan.workspace_bytes());
  };
  EXPECT_LE(workspace(32768), workspace(2048) + kMiB);
  EXPECT_LE(workspace(1 << 20), workspace(2048) + kMiB);
}

}  // namespace
}  // namespace attn::testing
