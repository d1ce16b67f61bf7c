// The CUDA backend's host side, without a GPU: which problems a kernel computes and which it refuses and why,
// which kernel is picked, the order of tiles, the table of kernels, and a machine without a driver.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <set>
#include <string>

#include "cuda/cuda_backend.hpp"
#include "cuda/select.hpp"

namespace attn {
namespace {

Problem problem_of(const char* line) {
  Problem p;
  const Status status = parse(line, &p);
  EXPECT_TRUE(status.ok()) << line << ": " << status.message();
  return p;
}

TEST(CudaTable, EveryKernelFitsTheMachineAndIsNamedOnce) {
  std::set<std::string> names;
  ASSERT_FALSE(cuda::kernels_table().empty());
  for (const cuda::KernelEntry& entry : cuda::kernels_table()) {
    EXPECT_TRUE(sm90::well_formed(entry.key, entry.config)) << entry.name;
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    ASSERT_GT(entry.cubin_bytes, 1000U) << entry.name;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(entry.cubin), 4),
              "\x7f"
              "ELF")
        << entry.name;
  }
}

TEST(CudaTable, EveryKeyIsBuilt) {
  for (const char* dtype : {"bf16", "fp16"}) {
    for (const int d : {64, 128, 256}) {
      for (const char* mask : {"", " causal=br", " causal=tl"}) {
        const Problem p =
            problem_of(("b1 hq1 hk1 sq9 sk9 d" + std::to_string(d) + " " + dtype + mask).c_str());
        ASSERT_TRUE(cuda::kernels_can(p).ok());
        const cuda::Selection s = cuda::select_kernel(p);
        ASSERT_NE(s.entry, nullptr);
        EXPECT_EQ(s.entry->key.head_dim, d);
        EXPECT_EQ(s.entry->key.mask == sm90::Mask::kCausal, p.causal);
        EXPECT_EQ(s.entry->key.element == sm90::Element::kBFloat16, std::string(dtype) == "bf16");
      }
    }
  }
}

TEST(CudaSelect, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"b1 hq1 hk1 sq9 sk9 d64 fp32", "fp32"},
      {"b1 hq1 hk1 sq9 sk9 d80 bf16", "head_dim_qk"},
      {"b1 hq1 hk1 sq9 sk9 d64 bf16 softcap=3", "softcap"},
      {"b1 hq1 hk1 sq9 sk9 d64 bf16 sinks", "sinks"},
  };
  for (const auto& [line, word] : cases) {
    const Status status = cuda::kernels_can(problem_of(line));
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << line;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
  Problem p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  p.window_left = 4;
  p.alignment = Alignment::kTopLeft;
  EXPECT_NE(cuda::kernels_can(p).message().find("window_left"), std::string::npos);
  p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  p.batch = p.heads_q = 1 << 20;
  EXPECT_FALSE(cuda::kernels_can(p).ok());
  p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  p.seqlen_q = std::int64_t{1} << 31;
  EXPECT_NE(cuda::kernels_can(p).message().find("seqlen_q"), std::string::npos);
}

TEST(CudaSelect, OffsetOfTheMask) {
  const auto offset = [](const char* line) {
    return cuda::select_kernel(problem_of(line)).shape.causal_offset;
  };
  EXPECT_EQ(offset("b1 hq1 hk1 sq10 sk30 d64 bf16 causal=br"), 20);
  EXPECT_EQ(offset("b1 hq1 hk1 sq10 sk30 d64 bf16 causal=tl"), 0);
  EXPECT_EQ(offset("b1 hq1 hk1 sq30 sk10 d64 bf16 causal=br"), -20);
  Problem p = problem_of("b1 hq1 hk1 sq10 sk30 d64 bf16");
  p.alignment = Alignment::kTopLeft;
  p.window_right = 5;  // no left bound: causal with another offset
  EXPECT_EQ(cuda::select_kernel(p).shape.causal_offset, 5);
  EXPECT_EQ(cuda::select_kernel(p).entry->key.mask, sm90::Mask::kCausal);
  p.window_right = std::int64_t{1} << 62;
  EXPECT_EQ(cuda::select_kernel(p).shape.causal_offset, 30);
}

TEST(CudaOrder, TilesAndSections) {
  const cuda::Selection full = cuda::select_kernel(problem_of("b2 hq6 hk3 sq300 sk1000 d128 bf16"));
  const cuda::TileOrder order = cuda::order_tiles(*full.entry, full.shape, 50 << 20);
  EXPECT_EQ(order.num_m_tiles, 3);
  EXPECT_EQ(order.num_tiles, 3 * 12);
  EXPECT_EQ(order.heads_per_section, 1);
  EXPECT_FALSE(order.dynamic);
  // Half of 50 MB holds 25 heads' K and V of 1 MB; each serves two query heads.
  const cuda::Selection causal =
      cuda::select_kernel(problem_of("b8 hq64 hk32 sq2048 sk2048 d128 bf16 causal=br"));
  const cuda::TileOrder sections = cuda::order_tiles(*causal.entry, causal.shape, 50 << 20);
  EXPECT_EQ(sections.heads_per_section, 50);
  EXPECT_TRUE(sections.dynamic);
  // Never more than there are, never none, also with no keys or a head larger than the cache.
  const cuda::Selection few = cuda::select_kernel(problem_of("b1 hq2 hk1 sq64 sk64 d64 bf16 causal=br"));
  EXPECT_EQ(cuda::order_tiles(*few.entry, few.shape, 50 << 20).heads_per_section, 2);
  EXPECT_EQ(cuda::order_tiles(*causal.entry, causal.shape, 1).heads_per_section, 2);
}

TEST(CudaBackend, WithoutADriverTheCpuServes) {
  const Problem p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  PlanOptions options;
  options.backend = Backend::kCuda;
  const Status status = cuda::support(p, options);
  if (status.ok()) {
    GTEST_SKIP() << "this machine has a GPU that the kernels run on";
  }
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(status.message().empty());
  Plan plan;
  EXPECT_EQ(make_plan(p, options, &plan).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(make_plan(p, {}, &plan).ok());
  EXPECT_EQ(plan.backend(), Backend::kCpu);
  EXPECT_NE(plan.explain().find("not cuda: "), std::string::npos) << plan.explain();
}

}  // namespace
}  // namespace attn
