// `attn selftest`: a few hundred conformance cases on this very machine, at every SIMD level it runs. Tested
// in tests/cli/selftest_test.py.
#include "verify/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "cpu/cpu_backend.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"
#include "verify_report.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

struct SelftestFlags {
  PlanFlags plan;
  std::int64_t seed = 1;
  std::int64_t random_cases = 150;
  double time_limit = 50;
  bool json = false;
};

int selftest(const SelftestFlags& flags) {
  verify::SelftestOptions options;
  options.seed = static_cast<std::uint64_t>(flags.seed);
  options.random_cases = flags.random_cases;
  options.time_limit_seconds = flags.time_limit;
  const PlanOptions plan = flags.plan.plan_options();
  if (plan.backend != Backend::kAuto || !plan.cpu_level.empty()) {
    options.plans.push_back(plan);
  } else if (plan.threads > 0) {
    for (const CpuLevel& level : cpu_levels()) {
      if (level.runnable) {
        options.plans.push_back(plan);
        options.plans.back().backend = Backend::kCpu;
        options.plans.back().cpu_level = level.name;
      }
    }
  }
  Tally tally;
  Json document = results_document("selftest", machine_name(), cpu::thread_limit(plan.threads));
  verify::SelftestSummary summary;
  {
    const InterruptGuard interrupt;
    Progress progress;
    options.progress = [&](const verify::SelftestProgress& p) {
      progress.show(fmt::format("{} of {} cases", p.done, p.total));
      if (p.last != nullptr) {
        document["rows"].push_back(report_row(*p.last));
        tally.count(*p.last);
      }
      return !InterruptGuard::interrupted();
    };
    summary = verify::selftest(options);
  }
  document["summary"] = {{"passed", summary.passed},
                         {"failed", summary.failed},
                         {"refused", summary.refused},
                         {"seconds", summary.seconds},
                         {"worst_error_of_bound", summary.max_ratio_o},
                         {"worst_problem", summary.worst_line},
                         {"stopped", summary.stopped}};
  if (flags.json) {
    print(json_text(document));
  } else {
    print(tally.table().text());
    for (const verify::Report& failure : summary.failures) {
      PlanOptions failed = plan;
      const bool is_cpu = failure.kernel.rfind("cpu:", 0) == 0;
      failed.backend = is_cpu ? Backend::kCpu : Backend::kCuda;
      failed.cpu_level = is_cpu ? failure.kernel.substr(4) : "";
      print(fmt::format("{}: {}, {}\n  {}\n", coloured("failed", Mood::kBad), failure.kernel, failure.failure,
                        reproduce(failed, false, failure)));
    }
    print(fmt::format("{} passed, {} failed, {} refused in {}{}\n", summary.passed, summary.failed,
                      summary.refused, time_text(summary.seconds),
                      summary.stopped ? "; stopped before the end" : ""));
  }
  if (summary.failed > 0 || summary.passed == 0) {
    return summary.failed > 0 || !summary.stopped ? kCheckFailed : kInterrupted;
  }
  return summary.stopped ? kInterrupted : kSuccess;
}

}  // namespace

Action add_selftest(Options& options) {
  const auto o = std::make_shared<SelftestFlags>();
  options.group("Cases");
  options.integer("--seed", &o->seed, "Seed of the data and of the random cases (default 1)");
  options.integer("--random", &o->random_cases, "Random cases beside the fixed list (default 150)", 0,
                  1000000);
  options.number("--time-limit", &o->time_limit, "Seconds after which no random case starts (default 50)", 0);
  options.flag("--json", &o->json, "Print a results document, a row a case");
  o->plan.add(options);
  options.examples({
      "attn selftest",
      "attn selftest --random 20 --threads 2 --json",
  });
  return [o] { return selftest(*o); };
}

}  // namespace attn::tool
