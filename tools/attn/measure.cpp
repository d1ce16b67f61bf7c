// Work, execution, timing: see measure.hpp.
#include "measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "command.hpp"
#include "core/geometry.hpp"
#include "cpu/cpu_backend.hpp"
#include "results.hpp"
#ifdef ATTN_HAVE_CUDA
#include "cuda/staging.hpp"
#endif

namespace attn::tool {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Work of one sequence, heads not yet multiplied in.
struct SequenceWork {
  double scores = 0;
  double keys = 0;  // seen by at least one query
};

SequenceWork sequence_work(const Problem& p, const core::Sequence& s) {
  SequenceWork work;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const core::KeyRange keys = core::visible_keys(p, s, i);
    work.scores += keys.empty() ? 0.0 : static_cast<double>(keys.end - keys.begin);
  }
  const core::KeyRange all = core::visible_keys_of_rows(p, s, 0, s.seqlen_q);
  work.keys = all.empty() ? 0.0 : static_cast<double>(all.end - all.begin);
  return work;
}

// Linear interpolation between the two nearest samples, as numpy.percentile does.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Timing summarise(std::vector<double>* samples) {
  std::sort(samples->begin(), samples->end());
  return {quantile(*samples, 0.5), quantile(*samples, 0.1), quantile(*samples, 0.9),
          static_cast<std::int64_t>(samples->size())};
}

}  // namespace

Work work_of(const Problem& p, const Tensors& tensors) {
  const bool same_lengths = !p.varlen_q && !p.varlen_kv && !p.seqused_kv;
  double scores = 0;
  double keys = 0;
  double rows = 0;
  for (std::int64_t b = 0; b < (same_lengths ? std::min<std::int64_t>(p.batch, 1) : p.batch); ++b) {
    const core::Sequence s = core::sequence_of(p, tensors, b);
    const SequenceWork one = sequence_work(p, s);
    const double times = same_lengths ? static_cast<double>(p.batch) : 1.0;
    scores += one.scores * times;
    keys += one.keys * times;
    rows += static_cast<double>(s.seqlen_q) * times;
  }
  const auto heads_q = static_cast<double>(p.heads_q);
  const auto heads_kv = static_cast<double>(p.heads_kv);
  const auto dims = static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const auto element = static_cast<double>(size_of(p.dtype));
  const double appended = 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.seqlen_new);
  Work work;
  work.visible_scores = scores * heads_q;
  work.flops = 2.0 * work.visible_scores * dims;
  work.bytes = element * dims * (rows * heads_q + (keys + appended) * heads_kv) +
               (p.want_lse ? 4.0 * rows * heads_q : 0.0);
  return work;
}

void Execution::Free::operator()(void* p) const noexcept {
  ::operator delete (p, std::align_val_t{64});
}

Execution::Execution(const Problem& problem, const PlanOptions& options) {
  check(make_plan(problem, options, &plan_));
  if (plan_.backend() == Backend::kCpu && plan_.workspace_bytes() > 0) {
    workspace_.reset(::operator new (plan_.workspace_bytes(), std::align_val_t{64}));
  }
}

#ifdef ATTN_HAVE_CUDA
namespace {

std::unique_ptr<cuda::Staging> stage(const Plan& plan, const Tensors& tensors) {
  std::unique_ptr<cuda::Staging> staging;
  check(cuda::Staging::open(plan, 0, &staging));
  check(staging->set_tensors(tensors));
  return staging;
}

}  // namespace
#endif

void Execution::run(const Tensors& tensors) {
#ifdef ATTN_HAVE_CUDA
  if (plan_.backend() == Backend::kCuda) {
    const auto staging = stage(plan_, tensors);
    check(staging->run());
    check(staging->fetch());
    return;
  }
#endif
  check(attn::run(plan_, tensors, workspace_.get(), plan_.workspace_bytes()));
}

Timing Execution::time(const Tensors& tensors, const TimingOptions& options,
                       const std::function<void(std::int64_t samples)>& tick) {
#ifdef ATTN_HAVE_CUDA
  if (plan_.backend() == Backend::kCuda) {
    const auto staging = stage(plan_, tensors);
    double single = 0;
    check(staging->time_runs(2, &single));
    check(staging->time_runs(2, &single));
    constexpr double kSample = 2e-3;
    const auto count = static_cast<std::int64_t>(std::ceil(std::max(1.0, kSample / std::max(single, 1e-7))));
    std::vector<double> samples;
    const Clock::time_point start = Clock::now();
    while (static_cast<std::int64_t>(samples.size()) < options.min_samples ||
           seconds_since(start) < options.min_time) {
      check(staging->time_runs(count, &samples.emplace_back()));
      if (tick) {
        tick(static_cast<std::int64_t>(samples.size()));
      }
    }
    check(staging->fetch());
    return summarise(&samples);
  }
#endif
  return time_runs([&] { run(tensors); }, options, tick);
}

Timing time_runs(const std::function<void()>& once, const TimingOptions& options,
                 const std::function<void(std::int64_t samples)>& tick) {
  once();
  const Clock::time_point estimate = Clock::now();
  once();
  const double single = std::max(seconds_since(estimate), 1e-9);
  constexpr double kShortest = 50e-6;
  const auto inner = static_cast<std::int64_t>(std::ceil(std::max(1.0, kShortest / single)));

  std::vector<double> samples;
  const Clock::time_point start = Clock::now();
  while (static_cast<std::int64_t>(samples.size()) < options.min_samples ||
         seconds_since(start) < options.min_time) {
    const Clock::time_point begin = Clock::now();
    for (std::int64_t i = 0; i < inner; ++i) {
      once();
    }
    samples.push_back(seconds_since(begin) / static_cast<double>(inner));
    if (tick) {
      tick(static_cast<std::int64_t>(samples.size()));
    }
  }
  return summarise(&samples);
}

std::optional<double> peak_gflops(const std::string& kernel, int threads) {
  constexpr std::string_view kCpu = "cpu:";
  if (kernel.rfind(kCpu, 0) != 0) {
    return std::nullopt;
  }
  static std::map<std::string, double> measured;  // the command measures on one thread
  const std::string level = kernel.substr(kCpu.size());
  if (measured.find(level) == measured.end()) {
    // The best of three: what else runs on the machine can only slow one down.
    double best = 0;
    for (int i = 0; i < 3; ++i) {
      best = std::max(best, cpu::measure_fma_peak_gflops(level, 0.1));
    }
    measured[level] = best;
  }
  return measured[level] * threads;
}

void PlanFlags::add(Options& options) {
  options.group("Where it runs");
  options.choice("--backend", &backend, {"auto", "cpu", "cuda"}, "Backend (default auto)");
  options.integer("--device", &device, "CUDA device (default 0)", 0, 1023);
  options.integer("--threads", &threads, "At most so many CPU threads (default: affinity and quota)", 1,
                  65536);
  options.text("--level", &level, "NAME", "CPU SIMD level; `attn list` shows them (default: the best)");
  options.text("--config", &config, "KERNEL", "A kernel by name; `attn list` and `attn tune` show them");
}

PlanOptions PlanFlags::plan_options() const {
  PlanOptions options;
  options.backend = backend == "cpu" ? Backend::kCpu : backend == "cuda" ? Backend::kCuda : Backend::kAuto;
  options.device = static_cast<int>(device);
  options.threads = static_cast<int>(threads);
  options.cpu_level = level;
  options.kernel = config;
  return options;
}

std::vector<verify::Case> cases_of(const std::vector<std::string>& problems,
                                   const std::vector<std::string>& files) {
  std::vector<verify::Case> cases;
  for (const std::string& line : join_problems(problems)) {
    check(verify::parse(line, &cases.emplace_back()));
  }
  for (const std::string& file : files) {
    check(verify::parse_shapes(read_text_file(file), &cases), file);
  }
  for (const verify::Case& c : cases) {
    check(validate(c.problem), to_string(c));
  }
  if (cases.empty()) {
    fail_usage("a problem is missing, such as \"b1 hq8 sq2048 d128 fp32 causal=br\"; or --file");
  }
  return cases;
}

std::vector<std::string> join_problems(const std::vector<std::string>& words) {
  std::vector<std::string> lines;
  bool open = false;  // whether the last line still takes tokens
  for (const std::string& word : words) {
    const bool whole = word.find_first_of(" \t") != std::string::npos;
    if (open && !whole) {
      lines.back() += ' ' + word;
    } else {
      lines.push_back(word);
    }
    open = !whole;
  }
  return lines;
}

}  // namespace attn::tool
