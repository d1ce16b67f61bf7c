// Random problems on several threads. Contract: verify_forever.hpp.
#include "verify_forever.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "command.hpp"
#include "cpu/cpu_backend.hpp"
#include "output.hpp"
#include "results.hpp"
#include "verify_report.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Scores of a dense problem: several tiles each way, and still milliseconds for the judge.
constexpr double kDenseScores = 262144;
constexpr double kScores = 65536;
constexpr std::size_t kMostFailures = 1000;  // that are kept with their lines

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Soak {
 public:
  Soak(const VerifyOptions& options, std::uint64_t first)
      : options_(options),
        first_(first),
        plans_(plans_of(options)),
        check_options_(check_options_of(options)) {
    if (options.jobs > 1) {
      for (PlanOptions& plan : plans_) {
        plan.threads = plan.threads == 0 ? 1 : plan.threads;
      }
    }
  }

  void run() {
    const InterruptGuard interrupt;
    std::vector<std::thread> workers;
    for (std::int64_t n = 1; n < options_.jobs; ++n) {
      workers.emplace_back([this] { work(); });
    }
    work();
    for (std::thread& worker : workers) {
      worker.join();
    }
  }

  Tally tally;
  Json failures = Json::array();
  std::uint64_t cases = 0;  // that were judged
  [[nodiscard]] double seconds() const { return seconds_since(start_); }

 private:
  void work() {
    const double limit =
        options_.time_limit >= 0 ? options_.time_limit : std::numeric_limits<double>::infinity();
    const std::uint64_t most = options_.cases >= 0 ? static_cast<std::uint64_t>(options_.cases)
                                                   : std::numeric_limits<std::uint64_t>::max();
    while (!InterruptGuard::interrupted() && seconds() < limit) {
      const std::uint64_t n = next_++;
      if (n >= most) {
        return;
      }
      const verify::Case c =
          verify::random_case(first_ + n, options_.dense ? kDenseScores : kScores,
                              options_.dense ? verify::Space::kDense : verify::Space::kAll);
      const std::vector<PlanOptions> plans = plans_for(options_, plans_, c.problem);
      std::size_t at = 0;
      verify::check_each(c, plans, check_options_, verify::host_runner(), [&](const verify::Report& report) {
        take(report, plans[at++]);
        return !InterruptGuard::interrupted();
      });
      const std::lock_guard lock(mutex_);
      ++cases;
    }
  }

  void take(const verify::Report& report, const PlanOptions& plan) {
    const std::lock_guard lock(mutex_);
    tally.count(report);
    progress_.show(fmt::format("{} problems: {} passed, {} failed, {} refused", cases, tally.passed,
                               tally.failed, tally.refused));
    if (report.passed || report.refused) {
      return;
    }
    progress_.erase();
    if (failures.size() < kMostFailures) {
      Json row = report_row(report);
      row["reference"] = reference_name(options_);
      row["reproduce"] = reproduce(plan, options_.bitwise, report);
      failures.push_back(row);
    }
    if (!options_.json) {
      print(fmt::format("{}: {}\n  {}\n", coloured("failed", Mood::kBad), report.failure,
                        reproduce(plan, options_.bitwise, report)));
      flush_output();
    }
  }

  const VerifyOptions& options_;
  const std::uint64_t first_;
  std::vector<PlanOptions> plans_;
  const verify::CheckOptions check_options_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_;  // guards what is public, and the progress line
  Progress progress_;
};

// A row a kernel: how many problems it computed rightly, and the worst of its errors.
Json document_of(const VerifyOptions& options, const Soak& soak, std::uint64_t first, double seconds) {
  Json document = results_document("verify-forever", machine_name(),
                                   cpu::thread_limit(static_cast<int>(options.plan.threads)));
  for (const auto& [name, kernel] : soak.tally.kernels) {
    Json row;
    row["problem"] = fmt::format("{} random {}problems from seed {}", kernel.passed + kernel.failed,
                                 options.dense ? "dense " : "", first);
    row["impl"] = "libattn:" + name;
    row["kernel"] = name;
    row["passed"] = kernel.failed == 0;
    row["problems_passed"] = kernel.passed;
    row["problems_failed"] = kernel.failed;
    row["max_error_of_bound"] = kernel.max_ratio_o;
    row["max_error_lse_of_bound"] = kernel.max_ratio_lse;
    row["worst_problem"] = kernel.worst_line;
    row["reference"] = reference_name(options);
    document["rows"].push_back(row);
  }
  document["failures"] = soak.failures;
  document["refused"] = soak.tally.refusals;
  document["summary"] = summary_json(soak.tally, seconds);
  document["summary"]["problems"] = soak.cases;
  document["summary"]["first_seed"] = first;
  document["summary"]["jobs"] = options.jobs;
  return document;
}

}  // namespace

std::vector<PlanOptions> plans_of(const VerifyOptions& options) {
  std::vector<PlanOptions> plans{options.plan.plan_options()};
  if (options.all_kernels && (options.all_levels || !options.plan.config.empty())) {
    fail_usage(
        fmt::format("--all-kernels and {}: ask for one", options.all_levels ? "--all-levels" : "--config"));
  }
  if (options.all_levels) {
    if (!options.plan.level.empty()) {
      fail_usage("--all-levels and --level: ask for one");
    }
    const PlanOptions base = plans.front();
    plans.clear();
    for (const CpuLevel& level : cpu_levels()) {
      if (level.runnable) {
        plans.push_back(base);
        plans.back().backend = Backend::kCpu;
        plans.back().cpu_level = level.name;
      }
    }
  }
  return plans;
}

std::vector<PlanOptions> plans_for(const VerifyOptions& options, const std::vector<PlanOptions>& plans,
                                   const Problem& problem) {
  if (!options.all_kernels) {
    return plans;
  }
  std::vector<PlanOptions> each;
  for (const PlanOptions& plan : plans) {
    const std::vector<PlanOptions> kernels = verify::each_kernel(problem, plan);
    each.insert(each.end(), kernels.begin(), kernels.end());
  }
  return each;
}

verify::CheckOptions check_options_of(const VerifyOptions& options) {
  verify::CheckOptions check_options;
  check_options.bitwise = options.bitwise;
  check_options.against_cpu = options.against == "cpu";
  return check_options;
}

const char* reference_name(const VerifyOptions& options) {
  return options.against == "cpu" ? "cpu fp32" : "float64";
}

int verify_forever(const VerifyOptions& options) {
  if (!options.problems.empty() || !options.files.empty()) {
    fail_usage("--forever draws its own problems; give none");
  }
  const auto first = static_cast<std::uint64_t>(options.seed < 0 ? 1 : options.seed);
  Soak soak(options, first);
  soak.run();
  const double seconds = soak.seconds();
  const Json document = document_of(options, soak, first, seconds);
  if (!options.output.empty()) {
    write_text_file(options.output, json_text(document));
  }
  const Tally& tally = soak.tally;
  if (options.json) {
    print(json_text(document));
  } else {
    print(tally.table().text());
    for (const auto& [reason, count] : tally.refusals) {
      print(fmt::format("refused {} times: {}\n", count, reason));
    }
    print(fmt::format("{} passed, {} failed, {} refused in {}; worst error {} of its bound: {}\n",
                      tally.passed, tally.failed, tally.refused, time_text(seconds),
                      percent_text(tally.worst_ratio), tally.worst_line));
  }
  return tally.exit_code();
}

}  // namespace attn::tool
