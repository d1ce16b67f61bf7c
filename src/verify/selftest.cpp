// The self-test: a fixed list that touches every feature, then random cases. Contract: selftest.hpp.
#include "verify/selftest.hpp"

#include <algorithm>
#include <chrono>

#include "verify/random.hpp"

namespace attn::verify {
namespace {

// Each line proves one thing, so that a failure names it. Sizes: the smallest that cross tile edges.
constexpr const char* kLines = R"(
# dtypes, head dims: vector tails and full tiles
b1 hq2 hk2 sq130 sk130 d64 fp32 lse
b1 hq2 hk2 sq130 sk130 d64 fp16 lse
b1 hq2 hk2 sq130 sk130 d64 bf16 lse
b1 hq1 hk1 sq65 sk129 d1 fp32 lse
b1 hq1 hk1 sq65 sk129 d7 fp16 lse
b1 hq1 hk1 sq65 sk129 d31 bf16 lse
b1 hq1 hk1 sq65 sk129 d72 fp16 lse
b1 hq1 hk1 sq65 sk129 d80 bf16 lse
b1 hq1 hk1 sq65 sk129 d96 fp32 lse
b1 hq1 hk1 sq65 sk129 d128 bf16 lse
b1 hq1 hk1 sq65 sk129 d192 dv128 bf16 lse
b1 hq1 hk1 sq65 sk129 d256 fp16 lse
b1 hq1 hk1 sq33 sk65 d64 dv512 fp32 lse
b1 hq1 hk1 sq33 sk65 d512 dv1 bf16 lse
# masks: both alignments, fewer and more queries than keys, windows
b1 hq2 hk2 sq130 sk130 d64 bf16 causal=br lse
b1 hq2 hk2 sq65 sk300 d64 fp16 causal=br lse
b1 hq2 hk2 sq300 sk65 d64 fp32 causal=br lse
b1 hq2 hk2 sq65 sk300 d64 bf16 causal=tl lse
b1 hq2 hk2 sq300 sk65 d64 bf16 causal=tl lse
b1 hq2 hk2 sq130 sk300 d64 bf16 align=br window=17,0 lse
b1 hq2 hk2 sq130 sk300 d64 fp16 align=br window=0,0 lse
b1 hq2 hk2 sq130 sk300 d64 fp32 align=tl window=64,9 lse
b1 hq2 hk2 sq130 sk300 d64 bf16 causal=br window=100,-1 lse
b1 hq2 hk2 sq5 sk2 d8 fp32 causal=br lse
# heads
b2 hq6 hk2 sq33 sk100 d64 bf16 causal=br lse data=const
b1 hq71 hk1 sq3 sk65 d64 fp16 causal=br lse
b2 hq12 hk3 sq1 sk300 d128 bf16 lse
# softmax options
b1 hq4 hk2 sq65 sk130 d64 bf16 softcap=15 causal=br lse data=sd8
b1 hq4 hk2 sq65 sk130 d64 fp32 softcap=1 lse
b1 hq4 hk2 sq65 sk130 d64 bf16 sinks lse
b1 hq4 hk2 sq65 sk30 d64 fp16 sinks lse_without_sink causal=br lse
b2 hq4 hk2 sq65 sk130 d64 fp32 alibi causal=br lse
b2 hq4 hk2 sq65 sk130 d64 bf16 alibi align=tl lse slopes=batch
b1 hq4 hk2 sq65 sk130 d64 bf16 scale=-0.125 lse
b1 hq4 hk2 sq65 sk130 d64 fp16 scale=0 lse
# data
b1 hq2 hk1 sq65 sk300 d64 bf16 causal=br lse data=sinkkey
b1 hq2 hk1 sq65 sk600 d64 bf16 lse data=drift
b1 hq2 hk1 sq65 sk600 d64 fp32 lse data=drift
b1 hq2 hk1 sq65 sk600 d64 fp16 lse data=steps
b1 hq2 hk1 sq65 sk300 d64 fp32 lse data=ramp
b1 hq2 hk1 sq65 sk300 d64 bf16 lse data=largeq
b1 hq2 hk1 sq65 sk300 d64 bf16 lse data=largev
b1 hq2 hk1 sq65 sk300 d64 fp32 lse data=smallv
b1 hq2 hk1 sq65 sk300 d64 fp16 lse data=alt
b1 hq2 hk1 sq65 sk300 d64 bf16 lse data=huge
b1 hq2 hk1 sq65 sk65 d64 fp16 lse data=low
b2 hq2 hk1 sq65 sk100 d64 bf16 causal=br lse data=nonfinite
b2 hq2 hk1 sq65 sk100 d64 fp32 causal=br lse data=nonfinite
# layouts
b2 hq4 hk2 sq33 sk100 d64 bf16 lse layout=bhsd
b2 hq4 hk2 sq100 sk100 d64 fp16 lse layout=interleaved offset=1
b2 hq4 hk2 sq33 sk100 d64 fp32 lse layout=bcast_batch
b2 hq4 hk2 sq33 sk97 d64 bf16 lse layout=bcast_heads
b2 hq4 hk2 sq33 sk100 d64 fp16 lse layout=bcast_keys
b2 hq4 hk2 sq33 sk100 d64 bf16 lse layout=padded offset=7
b2 hq4 hk2 sq33 sk100 d64 fp32 lse layout=negative offset=1
b2 hq4 hk2 sq33 sk100 d64 bf16 lse layout=gaps offset=3
b1 hq1 hk1 sq33 sk100 d64 fp16 lse layout=unit
# lengths: none, empty, packed, used
b2 hq2 hk1 sq5 sk0 d64 bf16 lse
b2 hq2 hk1 sq0 sk5 d64 fp32 lse
b0 hq2 hk1 sq5 sk5 d64 fp32 lse
b4 hq4 hk2 sq100 sk200 d64 bf16 causal=br lse varlen_kv=0 lens_q=0,100,37,1 lens_kv=200,0,129,5
b4 hq4 hk2 sq100 sk200 d64 fp16 lse lens_q=3,100,0,64 lens_kv=1,200,64,0
b3 hq4 hk2 sq65 sk200 d72 fp32 causal=br lse lens_kv=200,0,129
# paged
b3 hq4 hk2 sq3 sk300 d64 bf16 causal=br page=16 lse lens_kv=300,1,129
b3 hq4 hk2 sq65 sk300 d64 fp16 page=1 lse lens_kv=300,0,64
b3 hq4 hk2 sq65 sk300 d128 fp32 causal=br page=100 lse lens_kv=300,201,100 shared=2
b2 hq4 hk2 sq1 sk800 d64 bf16 page=256 lse lens_kv=107,800
# append
b3 hq4 hk2 sq1 sk200 d64 bf16 causal=br new=1 lse lens_kv=199,0,64
b3 hq4 hk2 sq5 sk200 d64 fp16 causal=br new=5 rotary=64,half lse lens_kv=195,0,64
b3 hq4 hk2 sq5 sk200 d64 fp32 causal=br new=5 rotary=32,interleaved lse lens_kv=195,0,64
b3 hq4 hk2 sq5 sk300 d64 bf16 causal=br new=70 rotary=64,interleaved page=48 lse lens_kv=195,0,64
# splits, batch-invariant
b1 hq2 hk1 sq1 sk1000 d64 bf16 splits=8 lse
b1 hq2 hk1 sq2 sk257 d64 fp16 splits=3 causal=br lse
b1 hq2 hk1 sq1 sk5 d32 fp32 splits=128 lse
b2 hq2 hk1 sq65 sk0 d32 bf16 splits=7 lse
b3 hq4 hk2 sq1 sk700 d64 bf16 page=64 splits=7 lse lens_kv=700,0,65
b3 hq4 hk2 sq9 sk300 d64 bf16 causal=br invariant lse lens_kv=300,5,129
)";

}  // namespace

SelftestSummary selftest(const SelftestOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };

  std::vector<PlanOptions> plans = options.plans;
  if (plans.empty()) {
    for (const CpuLevel& level : cpu_levels()) {
      if (level.runnable) {
        PlanOptions plan;
        plan.backend = Backend::kCpu;
        plan.cpu_level = level.name;
        plans.push_back(plan);
      }
    }
    PlanOptions cuda;
    cuda.backend = Backend::kCuda;
    Problem plain;
    Plan plan;
    if (make_plan(plain, cuda, &plan).ok()) {
      plans.push_back(cuda);
    }
  }
  const Runner runner = options.runner ? options.runner : host_runner();
  std::vector<Case> cases;
  SelftestSummary summary;
  if (const Status status = parse_shapes(kLines, &cases); !status.ok()) {
    Report report;
    report.failure = "the built-in list: " + status.message();
    summary.failures.push_back(report);
    summary.failed = 1;
    return summary;
  }
  const std::size_t fixed = cases.size();
  for (std::int64_t n = 0; n < options.random_cases; ++n) {
    cases.push_back(random_case(mix64(options.seed) + static_cast<std::uint64_t>(n)));
  }

  SelftestProgress progress;
  progress.total = static_cast<std::int64_t>(cases.size() * plans.size());
  for (std::size_t n = 0; n < cases.size() && !summary.stopped; ++n) {
    if (n >= fixed && seconds() > options.time_limit_seconds) {
      break;
    }
    check_each(cases[n], plans, {}, runner, [&](const Report& report) {
      ++progress.done;
      ++(report.passed ? summary.passed : report.refused ? summary.refused : summary.failed);
      if (!report.passed && !report.refused) {
        summary.failures.push_back(report);
      }
      if (report.max_ratio_o > summary.max_ratio_o) {
        summary.max_ratio_o = report.max_ratio_o;
        summary.worst_line = report.line;
      }
      progress.last = &report;
      if (options.progress && !options.progress(progress)) {
        summary.stopped = true;
      }
      return !summary.stopped;
    });
  }
  summary.seconds = seconds();
  return summary;
}

}  // namespace attn::verify
