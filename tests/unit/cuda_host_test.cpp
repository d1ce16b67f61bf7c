// The CUDA backend's host side, without a GPU: which problems a kernel computes and which it refuses and why,
// which kernel is picked, the order of tiles, the table of kernels, and a machine without a driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <attn/attn.hpp>
#include <cstring>
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

const cuda::KernelEntry& kernel_of(const char* line) {
  return *cuda::kernels_for(problem_of(line)).at(0);
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

// Which tile of head_dim computes which problem: the support table of docs/kernels/sm90_forward.md.
TEST(CudaSelect, TheSmallestTileThatHoldsTheHeadDims) {
  const struct {
    int qk, v, tile_qk, tile_v;
  } cases[] = {{8, 8, 32, 32},       {32, 32, 32, 32},     {40, 40, 64, 64},     {64, 64, 64, 64},
               {72, 72, 96, 96},     {80, 80, 96, 96},     {96, 96, 96, 96},     {104, 104, 128, 128},
               {120, 128, 128, 128}, {128, 128, 128, 128}, {64, 128, 128, 128},  {128, 64, 128, 64},
               {136, 136, 160, 160}, {160, 160, 160, 160}, {192, 192, 192, 192}, {192, 128, 192, 128},
               {200, 200, 256, 256}, {256, 256, 256, 256}, {256, 8, 256, 256},   {8, 256, 256, 256}};
  for (const char* dtype : {"bf16", "fp16"}) {
    for (const auto& c : cases) {
      for (const char* mask :
           {"", " causal=br", " window=9,3 causal=tl", " softcap=30", " alibi causal=br"}) {
        const std::string line =
            "b1 hq1 hk1 sq9 sk9 d" + std::to_string(c.qk) + " dv" + std::to_string(c.v) + " " + dtype + mask;
        const Problem p = problem_of(line.c_str());
        ASSERT_TRUE(cuda::kernels_can(p).ok()) << line << cuda::kernels_can(p).message();
        const cuda::KernelEntry* entry = cuda::kernels_for(p).at(0);
        const bool changed = std::strstr(mask, "softcap") != nullptr || std::strstr(mask, "alibi") != nullptr;
        EXPECT_EQ(entry->key.logits == sm90::Logits::kChanged, changed) << line;
        if (!changed) {
          EXPECT_EQ(entry->key.head_dim_qk, c.tile_qk) << line;
          EXPECT_EQ(entry->key.head_dim_v, c.tile_v) << line;
        } else {  // fewer tiles: the products do not bound these
          EXPECT_EQ(entry->key.head_dim_qk, std::max(c.qk, c.v) <= 64    ? 64
                                            : std::max(c.qk, c.v) <= 128 ? 128
                                            : std::max(c.qk, c.v) <= 192 ? 192
                                                                         : 256)
              << line;
        }
        EXPECT_EQ(entry->key.element == sm90::Element::kBFloat16, std::string(dtype) == "bf16");
        if (*mask != 0) {
          EXPECT_EQ(entry->key.mask, sm90::Mask::kBand) << line;
        }
      }
    }
  }
}

TEST(CudaSelect, FullKernelsForFullProblemsOnly) {
  for (const char* d : {"64", "128", "256"}) {
    const std::string line = std::string("b1 hq1 hk1 sq9 sk9 bf16 d") + d;
    EXPECT_EQ(kernel_of(line.c_str()).key.mask, sm90::Mask::kFull);
    EXPECT_EQ(kernel_of((line + " softcap=5").c_str()).key.mask, sm90::Mask::kBand);
  }
}

TEST(CudaSelect, AScaleOfZeroIsMultipliedBeforeTheMask) {
  EXPECT_EQ(kernel_of("b1 hq1 hk1 sq9 sk9 d128 bf16 scale=0").key.logits, sm90::Logits::kChanged);
  EXPECT_EQ(kernel_of("b1 hq1 hk1 sq9 sk9 d128 bf16 scale=1e-30").key.logits, sm90::Logits::kScaled);
}

TEST(CudaSelect, FewRowsTakeTheSmallTile) {
  const auto tile_m = [](const char* line) { return kernel_of(line).config.tile_m(); };
  EXPECT_EQ(tile_m("b1 hq1 hk1 sq767 sk4096 d64 bf16 causal=br"), 128);
  EXPECT_EQ(tile_m("b1 hq1 hk1 sq768 sk4096 d64 bf16 causal=br"), 192);
  EXPECT_EQ(tile_m("b1 hq1 hk1 sq9 sk4096 d64 bf16"), 192);
}

TEST(CudaSelect, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"b1 hq1 hk1 sq9 sk9 d64 fp32", "fp32"},
      {"b1 hq1 hk1 sq9 sk9 d84 bf16", "head_dim_qk is 84"},
      {"b1 hq1 hk1 sq9 sk9 d64 dv12 bf16", "head_dim_v is 12"},
      {"b1 hq1 hk1 sq9 sk9 d264 bf16", "at most 256"},
      {"b1 hq1 hk1 sq9 sk9 d64 bf16 softcap=1e31", "softcap"},
      {"b1 hq1 hk1 sq9 sk9 d64 bf16 softcap=1e-31", "softcap"},
  };
  for (const auto& [line, word] : cases) {
    const Status status = cuda::kernels_can(problem_of(line));
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << line;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
  Problem p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  p.batch = p.heads_q = 1 << 20;
  EXPECT_FALSE(cuda::kernels_can(p).ok());
  p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  p.seqlen_q = std::int64_t{1} << 31;
  EXPECT_NE(cuda::kernels_can(p).message().find("seqlen_q"), std::string::npos);
  // Rows of a tile beyond the last query, and a bound added to them, are int32 too.
  p.seqlen_q = p.seqlen_kv = (std::int64_t{1} << 30) - 256;
  EXPECT_TRUE(cuda::kernels_can(p).ok());
  ++p.seqlen_kv;
  EXPECT_NE(cuda::kernels_can(p).message().find("seqlen_kv is 1073741569"), std::string::npos);
  p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16");
  p.batch = std::int64_t{1} << 31;
  EXPECT_NE(cuda::kernels_can(p).message().find("batch"), std::string::npos);
}

TEST(CudaSelect, BoundsOfTheMask) {
  const auto bounds = [](const Problem& p) {
    const cuda::DenseShape s = cuda::dense_shape(p);
    return std::pair(s.band_lower, s.band_upper);
  };
  const auto of = [&](const char* line) { return bounds(problem_of(line)); };
  using Bounds = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(of("b1 hq1 hk1 sq10 sk30 d64 bf16"), (Bounds{-10, 30}));
  EXPECT_EQ(of("b1 hq1 hk1 sq10 sk30 d64 bf16 causal=br"), (Bounds{-10, 21}));
  EXPECT_EQ(of("b1 hq1 hk1 sq10 sk30 d64 bf16 causal=tl"), (Bounds{-10, 1}));
  EXPECT_EQ(of("b1 hq1 hk1 sq30 sk10 d64 bf16 causal=br"), (Bounds{-30, -19}));
  EXPECT_EQ(of("b1 hq1 hk1 sq10 sk30 d64 bf16 window=3,5 align=br"), (Bounds{17, 26}));
  EXPECT_EQ(of("b1 hq1 hk1 sq10 sk30 d64 bf16 window=3,5 causal=br"), (Bounds{17, 21}));
  EXPECT_EQ(of("b1 hq1 hk1 sq10 sk30 d64 bf16 window=3,5 align=tl"), (Bounds{-3, 6}));
  Problem p = problem_of("b1 hq1 hk1 sq10 sk30 d64 bf16");
  p.alignment = Alignment::kTopLeft;
  p.window_right = std::int64_t{1} << 62;
  EXPECT_EQ(bounds(p), (Bounds{-10, 30}));
  p.window_left = std::int64_t{1} << 62;
  EXPECT_EQ(bounds(p), (Bounds{-10, 30}));
}

// Names are what `attn list` shows and PlanOptions::kernel takes; a kernel with a larger tile is a candidate
// too.
TEST(CudaSelect, CandidatesByName) {
  const Problem p = problem_of("b1 hq1 hk1 sq9 sk9 d64 bf16 causal=br");
  const std::vector<std::string> names = cuda::candidates(p, {});
  ASSERT_GE(names.size(), 3U);
  EXPECT_EQ(names[0], "sm90:fwd_d64_bf16_band_m128");
  EXPECT_EQ(names[1], "sm90:fwd_d64_bf16_band");
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.back(), "sm90:fwd_d256_bf16_band");
  EXPECT_EQ(cuda::kernels().size(), cuda::kernels_table().size());
}

TEST(CudaOrder, TilesAndSections) {
  const auto order_of = [](const char* line, std::int64_t l2_bytes = 50 << 20) {
    return cuda::order_tiles(kernel_of(line), cuda::dense_shape(problem_of(line)), {l2_bytes, 132});
  };
  const cuda::TileOrder order = order_of("b2 hq6 hk3 sq300 sk1000 d128 bf16");
  EXPECT_EQ(order.num_m_tiles, 3);
  EXPECT_EQ(order.num_tiles, 3 * 12);
  EXPECT_EQ(order.heads_per_section, 1);
  EXPECT_FALSE(order.dynamic);
  // Half of 50 MB holds 25 heads' K and V of 1 MB, each for two query heads: 10 sections of 50 of the 512
  // heads would leave 12 over, so they are of 52.
  EXPECT_EQ(order_of("b8 hq64 hk32 sq2048 sk2048 d128 bf16 causal=br").heads_per_section, 52);
  // 25 of 32 heads fit, but the 7 left over have 112 tiles, fewer than SMs: one section.
  EXPECT_EQ(order_of("b1 hq32 hk32 sq2048 sk2048 d128 bf16 causal=br").heads_per_section, 32);
  // 3 of 16 heads fit (8 MB each); 264 tiles would be 5 heads of 64, and three quarters of 50 MB hold 4.
  EXPECT_EQ(order_of("b2 hq8 hk8 sq8192 sk8192 d256 bf16 causal=br").heads_per_section, 4);
  // 6 of 32 heads fit (4 MB each), 9 would be even: three sections would be of 11, so four of 8.
  EXPECT_EQ(order_of("b4 hq8 hk8 sq4096 sk4096 d256 bf16 causal=br").heads_per_section, 8);
  EXPECT_EQ(order_of("b1 hq8 hk8 sq16384 sk16384 d256 bf16 causal=br").heads_per_section, 2);
  // Four tiles a head: one and a half rounds of 132 SMs are 50 heads, and 512 heads make 10 sections of 52.
  EXPECT_EQ(order_of("b32 hq16 hk16 sq512 sk512 d128 bf16 causal=br").heads_per_section, 52);
  // Eight: 25 heads, 5 sections of 26 of the 128.
  EXPECT_EQ(order_of("b16 hq8 hk8 sq1024 sk1024 d256 bf16 causal=br").heads_per_section, 26);
  // A window only at the left makes tiles of different lengths too; a band kernel without bounds does not.
  EXPECT_TRUE(order_of("b8 hq6 hk3 sq384 sk1000 d128 bf16 window=9,-1 align=br").dynamic);
  EXPECT_FALSE(order_of("b8 hq6 hk3 sq384 sk1000 d96 bf16").dynamic);
  // Nothing is claimed where each SM has one tile at most.
  EXPECT_FALSE(order_of("b2 hq6 hk3 sq384 sk1000 d128 bf16 window=9,-1 align=br").dynamic);
  // Without a mask tiles differ where the last one leaves a warpgroup without rows: 512 is 2 · 192 + 128.
  EXPECT_TRUE(order_of("b32 hq32 hk32 sq512 sk512 d64 bf16").dynamic);
  EXPECT_TRUE(order_of("b32 hq32 hk32 sq513 sk512 d128 bf16").dynamic);
  EXPECT_FALSE(order_of("b32 hq32 hk32 sq512 sk512 d128 bf16").dynamic);
  EXPECT_FALSE(order_of("b32 hq32 hk32 sq576 sk512 d64 bf16").dynamic);
  EXPECT_FALSE(order_of("b32 hq32 hk32 sq577 sk512 d128 bf16").dynamic);  // 65 rows, some for each warpgroup
  EXPECT_FALSE(order_of("b32 hq32 hk32 sq100 sk512 d64 bf16").dynamic);
  // Never more than there are, never none, also with no keys or a head larger than the cache.
  EXPECT_EQ(order_of("b1 hq2 hk1 sq64 sk64 d64 bf16 causal=br").heads_per_section, 2);
  EXPECT_EQ(order_of("b1 hq2 hk1 sq65536 sk65536 d64 bf16 causal=br", 1).heads_per_section, 2);
  EXPECT_EQ(order_of("b1 hq4 hk4 sq65536 sk65536 d64 bf16 causal=br", 1).heads_per_section, 1);
  // An empty batch, of short and of long heads; no queries.
  for (const char* line :
       {"b0 hq4 hk4 sq128 sk128 d64 bf16 causal=br", "b0 hq4 hk2 sq65536 sk9 d64 bf16 causal=br",
        "b2 hq4 hk2 sq0 sk9 d64 bf16 causal=br"}) {
    EXPECT_EQ(order_of(line).num_tiles, 0) << line;
    EXPECT_GE(order_of(line).heads_per_section, 1) << line;
    EXPECT_FALSE(order_of(line).dynamic) << line;
  }
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
