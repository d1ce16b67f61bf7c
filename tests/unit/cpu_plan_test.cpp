// What a CPU plan promises: the workspace grows with threads × tile + splits × rows × head_dim and never with
// S × S, splits follow from the problem and not from the threads, refusals name what is allowed, and explain
// says what was decided.
#include <gtest/gtest.h>

#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

Problem dense(std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t heads = 8) {
  Problem p;
  p.dtype = DType::kFloat32;
  p.seqlen_q = seqlen_q;
  p.seqlen_kv = seqlen_kv;
  p.heads_q = heads;
  p.heads_kv = heads;
  p.head_dim_qk = 128;
  p.head_dim_v = 128;
  return p;
}

Plan plan_of(const Problem& p, int threads, const std::string& level = "") {
  Plan plan;
  const Status status = make_plan(p, cpu_options(level, threads), &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

// What the level amx keeps for small values, another O and another tile of V, at most: calls without such
// values do not touch it.
std::size_t small_bytes(const std::string& level) {
  return level == "amx" ? std::size_t{5} << 18 : 0;
}

// Nor beyond a second-level cache of 2 MiB, whatever the type.
TEST(CpuPlan, WorkspaceDoesNotGrowWithTheSequence) {
  for (const std::string& level : runnable_levels()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const std::int64_t seqlen : {2048, 4096, 32768, 1 << 20}) {
        Problem p = dense(seqlen, seqlen);
        p.dtype = dtype;
        EXPECT_LT(plan_of(p, 1, level).workspace_bytes(), (std::size_t{2} << 20) + small_bytes(level))
            << level << " " << to_string(dtype) << " " << seqlen;
      }
    }
  }
}

TEST(CpuPlan, WorkspaceIsThreadsTimesTileAndSplitsTimesRows) {
  Problem p = dense(1000, 4096, 4);
  const std::size_t whole = plan_of(p, 1).workspace_bytes();
  p.num_splits = 6;
  const std::size_t partials = 6 * 1000 * 4 * (128 + 2) * sizeof(float);
  const std::size_t split = plan_of(p, 1).workspace_bytes();
  EXPECT_GE(split, partials);
  EXPECT_LE(split, whole + partials + 64);
  for (const int dim : {1, 40, 512}) {
    p = dense(300, 5000, 2);
    p.head_dim_qk = dim;
    p.head_dim_v = 513 - dim;
    for (const std::string& level : runnable_levels()) {
      EXPECT_LT(plan_of(p, 1, level).workspace_bytes(), (std::size_t{3} << 20) + small_bytes(level))
          << level << " " << dim;
    }
  }
}

TEST(CpuPlan, SplitsFollowFromTheProblemAlone) {
  for (const std::int64_t seqlen_kv : {100, 600, 8192, 100000}) {
    const int splits = plan_of(dense(1, seqlen_kv), 1).num_splits();
    EXPECT_EQ(plan_of(dense(1, seqlen_kv), 64).num_splits(), splits);
    EXPECT_EQ(splits > 1, seqlen_kv > 1023) << seqlen_kv;
  }
  EXPECT_EQ(plan_of(dense(2048, 8192), 1).num_splits(), 1);
  Problem p = dense(1, 8192);
  p.num_splits = 5;
  EXPECT_EQ(plan_of(p, 1).num_splits(), 5);
}

TEST(CpuPlan, HeadDimsBeyond512AreRefused) {
  Problem p = dense(4, 4);
  p.head_dim_v = 512;
  EXPECT_TRUE(plan_of(p, 1).valid());
  p.head_dim_v = 513;
  Plan plan;
  const Status status = make_plan(p, cpu_options(), &plan);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("head_dim_v is 513; allowed on the CPU: 1 to 512"), std::string::npos)
      << status.message();
}

TEST(CpuPlan, APartialResultThatNoMemoryHoldsIsRefused) {
  Problem p = dense(2147483647, 2147483647, 1 << 20);
  p.batch = 2000;
  p.num_splits = 1024;
  p.head_dim_v = 512;
  Plan plan;
  const Status status = make_plan(p, cpu_options(), &plan);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("num_splits is 1024"), std::string::npos) << status.message();
}

TEST(CpuPlan, ExplainSaysWhatWasDecided) {
  const std::string text = plan_of(dense(1, 8192), 1).explain();
  for (const char* part : {"kernel: cpu:", "level: ", "path: direct", "tiles: ", "split rule: ", "splits: 8",
                           "threads: 1 (CPU affinity", "workspace: "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_NE(plan_of(dense(64, 64), 1).explain().find("path: packed tiles"), std::string::npos);
}

}  // namespace
}  // namespace attn::cpu
