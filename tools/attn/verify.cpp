// `attn verify`: seeded inputs between poison and guards, a backend against the float64 reference, and the
// line that reproduces what fails. Tested in tests/cli/verify_test.py.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "cpu/cpu_backend.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"
#include "verify/check.hpp"
#include "verify_report.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct VerifyOptions {
  std::vector<std::string> problems;
  std::vector<std::string> files;
  PlanFlags plan;
  bool all_levels = false;
  bool bitwise = false;
  bool forever = false;
  double time_limit = -1;  // below 0: not given
  std::int64_t seed = -1;  // below 0: not given
  bool json = false;
};

std::vector<verify::Case> cases_of(const VerifyOptions& options) {
  std::vector<verify::Case> cases;
  for (const std::string& line : join_problems(options.problems)) {
    check(verify::parse(line, &cases.emplace_back()));
  }
  for (const std::string& file : options.files) {
    check(verify::parse_shapes(read_text_file(file), &cases), file);
  }
  return cases;
}

std::vector<PlanOptions> plans_of(const VerifyOptions& options) {
  std::vector<PlanOptions> plans{options.plan.plan_options()};
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

// What reproduces one report: the flags that chose the kernel, then the case.
std::string reproduce(const VerifyOptions& options, const PlanOptions& plan, const verify::Report& report) {
  std::string line = "attn verify";
  if (plan.backend != Backend::kAuto) {
    line += fmt::format(" --backend {}", to_string(plan.backend));
  }
  if (!plan.cpu_level.empty()) {
    line += fmt::format(" --level {}", plan.cpu_level);
  }
  if (plan.threads > 0) {
    line += fmt::format(" --threads {}", plan.threads);
  }
  line += options.bitwise ? " --bitwise" : "";
  return line + fmt::format(" \"{}\"", report.line);
}

struct Tally {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t refused = 0;
  double worst_ratio = 0;
  std::string worst_line;

  void count(const verify::Report& report) {
    (report.refused ? refused : report.passed ? passed : failed) += 1;
    if (!report.refused && report.max_ratio_o >= worst_ratio) {
      worst_ratio = report.max_ratio_o;
      worst_line = report.line;
    }
  }
  [[nodiscard]] int exit_code() const {
    return failed > 0 ? kCheckFailed : passed == 0 ? kUnsupported : kSuccess;
  }
};

void print_failure(const VerifyOptions& options, const PlanOptions& plan, const verify::Report& report) {
  print(fmt::format("{}: {}\n  {}\n", coloured("failed", Mood::kBad), report.failure,
                    reproduce(options, plan, report)));
}

Json summary_json(const Tally& tally, double seconds) {
  Json json;
  json["passed"] = tally.passed;
  json["failed"] = tally.failed;
  json["refused"] = tally.refused;
  json["seconds"] = seconds;
  json["worst_error_of_bound"] = tally.worst_ratio;
  json["worst_problem"] = tally.worst_line;
  return json;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int verify_cases(const VerifyOptions& options) {
  if (options.time_limit >= 0 || options.seed >= 0) {
    fail_usage(fmt::format("{} is for --forever; a problem's own seed is its token seed=",
                           options.seed >= 0 ? "--seed" : "--time-limit"));
  }
  const std::vector<verify::Case> cases = cases_of(options);
  if (cases.empty()) {
    fail_usage(
        "a problem is missing, such as \"b2 hq8 hk2 sq130 sk300 d64 bf16 causal=br\"; or --file, --forever");
  }
  const std::vector<PlanOptions> plans = plans_of(options);
  verify::CheckOptions check_options;
  check_options.bitwise = options.bitwise;
  Table table = report_table();
  Json document = results_document("verify", machine_name(), cpu::thread_limit(plans.front().threads));
  Tally tally;
  std::vector<std::string> notes;  // failures and refusals, below the table
  const Clock::time_point start = Clock::now();
  {
    const InterruptGuard interrupt;
    Progress progress;
    const std::size_t total = cases.size() * plans.size();
    for (std::size_t i = 0; i < total && !InterruptGuard::interrupted(); ++i) {
      const verify::Case& c = cases[i / plans.size()];
      const PlanOptions& plan = plans[i % plans.size()];
      progress.show(fmt::format("{} of {}: {}", i + 1, total, to_string(c.problem)));
      const verify::Report report = verify::check(c, plan, check_options);
      tally.count(report);
      add_report(&table, report);
      Json row = report_row(report);
      row["reproduce"] = reproduce(options, plan, report);
      document["rows"].push_back(row);
      if (report.refused || !report.passed) {
        notes.push_back(report.refused ? fmt::format("refused: {}\n", report.failure)
                                       : fmt::format("{}: {}\n  {}\n", coloured("failed", Mood::kBad),
                                                     report.failure, reproduce(options, plan, report)));
      }
    }
  }
  const double seconds = seconds_since(start);
  document["summary"] = summary_json(tally, seconds);
  if (options.json) {
    print(json_text(document));
  } else {
    print(table.text());
    for (const std::string& note : notes) {
      print(note);
    }
    print(fmt::format("{} passed, {} failed, {} refused in {}\n", tally.passed, tally.failed, tally.refused,
                      time_text(seconds)));
  }
  if (InterruptGuard::interrupted()) {
    return kInterrupted;
  }
  return tally.failed == 0 && tally.refused > 0 ? static_cast<int>(kUnsupported) : tally.exit_code();
}

// Random problems until the time is up, Ctrl-C, or for ever. Case n of a seed is the same on every machine.
int verify_forever(const VerifyOptions& options) {
  if (!options.problems.empty() || !options.files.empty()) {
    fail_usage("--forever draws its own problems; give none");
  }
  const auto first = static_cast<std::uint64_t>(options.seed < 0 ? 1 : options.seed);
  const std::vector<PlanOptions> plans = plans_of(options);
  verify::CheckOptions check_options;
  check_options.bitwise = options.bitwise;
  Tally tally;
  Json failures = Json::array();
  const Clock::time_point start = Clock::now();
  {
    const InterruptGuard interrupt;
    Progress progress;
    const double limit =
        options.time_limit >= 0 ? options.time_limit : std::numeric_limits<double>::infinity();
    for (std::uint64_t n = 0; !InterruptGuard::interrupted() && seconds_since(start) < limit; ++n) {
      const verify::Case c = verify::random_case(first + n);
      for (const PlanOptions& plan : plans) {
        const verify::Report report = verify::check(c, plan, check_options);
        tally.count(report);
        progress.show(fmt::format("seed {}: {} passed, {} failed, {} refused", first + n, tally.passed,
                                  tally.failed, tally.refused));
        if (report.passed || report.refused) {
          continue;
        }
        progress.erase();
        if (options.json) {
          Json row = report_row(report);
          row["reproduce"] = reproduce(options, plan, report);
          failures.push_back(row);
        } else {
          print_failure(options, plan, report);
          flush_output();
        }
      }
    }
  }
  const double seconds = seconds_since(start);
  if (options.json) {
    Json document =
        results_document("verify-forever", machine_name(), cpu::thread_limit(plans.front().threads));
    document["rows"] = failures;
    document["summary"] = summary_json(tally, seconds);
    print(json_text(document));
  } else {
    print(fmt::format("{} passed, {} failed, {} refused in {}; worst error {} of its bound: {}\n",
                      tally.passed, tally.failed, tally.refused, time_text(seconds),
                      percent_text(tally.worst_ratio), tally.worst_line));
  }
  return tally.exit_code();
}

}  // namespace

Action add_verify(Options& options) {
  const auto o = std::make_shared<VerifyOptions>();
  options.group("Problems");
  options.texts("problem", &o->problems, "PROBLEM ...",
                "Problem strings, with lens_kv=, data=, layout=, seed= … too");
  options.texts("--file", &o->files, "FILE", "A shape file: a problem a line, # starts a comment");
  options.flag("--forever", &o->forever, "Random problems until --time-limit or Ctrl-C");
  options.number("--time-limit", &o->time_limit, "Seconds that --forever runs", 0);
  options.integer("--seed", &o->seed, "First seed of --forever (default 1)");
  options.group("Checks");
  options.flag("--bitwise", &o->bitwise,
               "Run twice, with other bits in the workspace, and compare every bit");
  options.flag("--all-levels", &o->all_levels, "On every SIMD level that runs here");
  options.flag("--json", &o->json, "Print a results document");
  o->plan.add(options);
  options.examples({
      "attn verify \"b2 hq8 hk2 sq130 sk300 d64 bf16 causal=br\"",
      "attn verify --bitwise --all-levels b1 hq4 hk4 sq77 sk77 d80 fp16 window=9,0 align=br data=drift",
      "attn verify --file bench/shapes/smoke.txt --json",
      "attn verify --forever --time-limit 2 --seed 42",
  });
  return [o] { return o->forever ? verify_forever(*o) : verify_cases(*o); };
}

}  // namespace attn::tool
