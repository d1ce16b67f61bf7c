// Repeatability, batch independence and threads, from public reports.
#include <atomic>
#include <thread>

#include "support.hpp"

namespace attn::testing {
namespace {

// turboderp-org/exllamav3 PR#316; Dao-AILab/flash-attention#1344, #47; NVIDIA/TensorRT-LLM#17964;
// ggml-org/llama.cpp#7903: the same input, another output between calls (uninitialised padding, a missing
// barrier), or wrong only from a certain batch size on.
class ExLlama316 : public ::testing::TestWithParam<const char*> {};

TEST_P(ExLlama316, TwoHundredCallsTheSameBits) {
  const std::vector<PlanOptions> levels = all_plans(GetParam());
  for (std::size_t level = 0; level < levels.size(); ++level) {
    const std::vector<float> first = values_of(GetParam(), levels[level], 0x00);
    verify::Buffers buffers(case_of(GetParam()));
    const int calls = level == 0 || levels[level].backend == Backend::kCuda ? 200 : 8;
    for (int n = 1; n < calls; ++n) {
      buffers.reset();
      verify::RunInfo info;
      ASSERT_TRUE(
          verify::host_runner()(buffers, levels[level], static_cast<std::uint8_t>(n * 37), &info).ok());
      ASSERT_TRUE(same_bits(Results(buffers).all(), first)) << name_of(levels[level]) << " call " << n;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    PublicReports, ExLlama316,
    ::testing::Values(
        "hq4 hk4 sq128 sk128 d72 fp16", "sq130 sk449 d8 causal=br lse bf16", "sq5 sk2 d8 causal=br lse fp32",
        "sq6 sk6 d8 lse align=br window=2,0 fp16",
        "b4 hq4 hk1 sq150 sk100 d64 bf16 lse varlen_kv=0 lens_q=0,150,37,1 lens_kv=100,0,65,33",
        "hq12 hk2 sq1 sk500 d16 lse fp16", "b2 hq3 hk3 sq77 sk77 d128 lse bf16 offset=1 layout=padded",
        "sq1 sk130 d128 lse bf16 data=largeq", "hq4 hk2 sq3 sk300 d64 lse fp32 softcap=15 sinks causal=br",
        "b4 hq8 hk8 sq1 sk128 d64 bf16 lse lens_kv=32,64,96,48",
        "b3 hq8 hk2 sq2 sk500 d128 fp16 lse page=100 lens_kv=500,99,101 shared=1",
        "b2 hq2 hk1 sq2 sk257 d32 lse fp32 splits=8",
        "b3 hq8 hk2 sq1 sk64 d64 lse bf16 splits=3 lens_kv=64,0,5",
        "b2 hq4 hk2 sq3 sk300 d64 bf16 causal=br new=3 rotary=64,half page=16 lse lens_kv=297,64"));

// Every item of a batch equals the single call, for each batch size; in batch-invariant mode bit for bit.
class LlamaCpp7903 : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(LlamaCpp7903, BatchSweepOfTheSameSequence) {
  const auto [d, mode] = GetParam();
  const std::string tail =
      " hq8 hk2 sq1 sk200 bf16 lse d" + std::to_string(d) + std::string(mode) + " layout=bcast_batch";
  const auto of_batch = [&](int batch, const PlanOptions& plan) {
    verify::Buffers buffers(case_of("b" + std::to_string(batch) + tail));
    buffers.rewrite(verify::Which::kQ, [](const verify::RowId& id, std::span<float> row) {
      for (std::size_t c = 0; c < row.size(); ++c) {
        row[c] = static_cast<float>((static_cast<std::int64_t>(c) * 7 + id.h * 13) % 31) / 16.0F - 1.0F;
      }
    });
    verify::RunInfo info;
    EXPECT_TRUE(verify::host_runner()(buffers, plan, 0xFF, &info).ok());
    std::vector<std::vector<float>> items;
    for (int b = 0; b < batch; ++b) {
      items.push_back(Results(buffers).sequence(b));
    }
    return items;
  };
  for (const PlanOptions& plan : all_plans("b1" + tail, Kernels::kChosen)) {
    if (plan.backend == Backend::kCpu && plan.cpu_level != all_levels()[0].cpu_level) {
      continue;  // the best level alone: the sweep is long
    }
    const std::vector<float> single = of_batch(1, plan)[0];
    for (int batch = 2; batch <= 64; ++batch) {
      for (const std::vector<float>& item : of_batch(batch, plan)) {
        if (std::string(mode) == " invariant") {
          ASSERT_TRUE(same_bits(item, single)) << name_of(plan) << ", batch " << batch;
          continue;
        }
        for (std::size_t n = 0; n < item.size(); ++n) {
          ASSERT_NEAR(item[n], single[n], 0x1p-7) << name_of(plan) << ", batch " << batch;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(PublicReports, LlamaCpp7903,
                         ::testing::Combine(::testing::Values(128, 256),
                                            ::testing::Values("", " invariant")));

// Batch-invariant mode: a sequence's bits do not depend on its neighbours, whatever their lengths are.
TEST(PublicReports, LlamaCpp7903_InvariantOfTheNeighboursLengths) {
  for (const char* type : kDTypes) {
    for (const char* entry : {"", " page=16", " causal=br"}) {
      const std::string base = std::string(" hq8 hk2 sk900 d64 lse invariant ") + type + entry;
      for (const std::string& queries : {std::string(" sq1"), std::string(" sq7")}) {
        for (const PlanOptions& plan : all_levels()) {
          std::vector<std::vector<float>> results;
          for (const char* lens :
               {"b1 lens_kv=700", "b2 lens_kv=700,3", "b5 lens_kv=700,900,0,7,300", "b17 lens_kv=700,1x16"}) {
            verify::Buffers buffers(case_of(lens + base + queries));
            verify::RunInfo info;
            ASSERT_TRUE(verify::host_runner()(buffers, plan, 0xFF, &info).ok());
            results.push_back(Results(buffers).sequence(0));
          }
          for (const auto& result : results) {
            EXPECT_TRUE(same_bits(result, results[0])) << plan.cpu_level << base << queries;
          }
        }
      }
    }
  }
}

TEST(PublicReports, LlamaCpp7903_FiveHundredByThirtyFiveThousand) {
  verify::CheckOptions options;
  options.random_rows = 24;
  options.bitwise = true;
  const verify::Case c = case_of("hq1 hk1 sq500 sk35000 d64 bf16 causal=br lse");
  std::vector<PlanOptions> plans;
  for (const PlanOptions& plan : all_plans(c.problem)) {
    if (plan.backend == Backend::kCuda || plans.empty()) {
      plans.push_back(plan);
    }
  }
  verify::check_each(c, plans, options, verify::host_runner(), [](const verify::Report& report) {
    EXPECT_TRUE(report.passed) << report.kernel << ": " << report.failure;
    return true;
  });
}

// ollama/ollama#17916; dmlc/xgboost#7653; llvm/llvm-project#225493: thread counts. Here: results do not
// depend on them, and calls from several application threads at once are right.
class Ollama17916 : public ::testing::TestWithParam<const char*> {};

TEST_P(Ollama17916, ResultsDoNotDependOnTheThreadCount) {
  for (const PlanOptions& level : all_levels()) {
    const std::vector<float> one = values_of(GetParam(), cpu_plan(level.cpu_level, 1));
    for (const int threads : {2, 3, 1000, 0}) {
      EXPECT_TRUE(same_bits(values_of(GetParam(), cpu_plan(level.cpu_level, threads)), one))
          << level.cpu_level << ", " << threads << " threads";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    PublicReports, Ollama17916,
    ::testing::Values("sq1 sk1 d1 fp32 lse", "b2 hq4 hk2 sq130 sk300 d64 bf16 causal=br lse",
                      "b1 hq2 hk1 sq1 sk3000 d64 fp16 lse", "b1 hq8 hk1 sq4 sk700 d128 fp32 splits=7 lse",
                      "b3 hq4 hk2 sq33 sk300 d64 bf16 page=16 new=5 lse lens_kv=200,0,64",
                      "b5 hq4 hk2 sq65 sk300 d80 fp16 varlen_kv=0 varlen_q=0 lse seed=4"));

TEST(PublicReports, Ollama17916_FourApplicationThreadsAtOnce) {
  const std::string line = "b2 hq4 hk2 sq70 sk300 d64 bf16 causal=br lse seed=";
  for (const PlanOptions& plan : all_plans(line + "1", Kernels::kChosen)) {
    std::vector<std::vector<float>> want;
    for (int n = 0; n < 4; ++n) {
      want.push_back(values_of(line + std::to_string(n + 1), plan));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; ++n) {
      threads.emplace_back([&, n] {
        verify::Buffers buffers(case_of(line + std::to_string(n + 1)));
        for (int call = 0; call < 20; ++call) {
          buffers.reset();
          verify::RunInfo info;
          const Status status = verify::host_runner()(buffers, plan, static_cast<std::uint8_t>(call), &info);
          wrong += !status.ok() || !same_bits(Results(buffers).all(), want[static_cast<std::size_t>(n)]);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(wrong, 0) << name_of(plan);
  }
}

}  // namespace
}  // namespace attn::testing
