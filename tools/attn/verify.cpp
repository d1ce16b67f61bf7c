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
#include "verify_forever.hpp"
#include "verify_report.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

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

void refuse_flags_of_forever(const VerifyOptions& options) {
  const std::pair<const char*, bool> flags[] = {
      {"--time-limit", options.time_limit >= 0}, {"--cases", options.cases >= 0}, {"--dense", options.dense}};
  for (const auto& [name, given] : flags) {
    if (given) {
      fail_usage(fmt::format("{} is for --forever", name));
    }
  }
  if (options.seed >= 0) {
    fail_usage("--seed is for --forever; a problem's own seed is its token seed=");
  }
  if (options.jobs != 1) {
    fail_usage("--jobs is for --forever; given problems run one after another");
  }
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int verify_cases(const VerifyOptions& options) {
  refuse_flags_of_forever(options);
  const std::vector<verify::Case> cases = cases_of(options);
  if (cases.empty()) {
    fail_usage(
        "a problem is missing, such as \"b2 hq8 hk2 sq130 sk300 d64 bf16 causal=br\"; or --file, --forever");
  }
  const std::vector<PlanOptions> plans = plans_of(options);
  const verify::CheckOptions check_options = check_options_of(options);
  Table table = report_table();
  Json document = results_document("verify", machine_name(), cpu::thread_limit(plans.front().threads));
  Tally tally;
  std::vector<std::string> notes;  // failures and refusals, below the table
  const Clock::time_point start = Clock::now();
  {
    const InterruptGuard interrupt;
    Progress progress;
    std::size_t at = 0;
    for (const verify::Case& c : cases) {
      ++at;
      if (InterruptGuard::interrupted()) {
        break;
      }
      const std::vector<PlanOptions> of_case = plans_for(options, plans, c.problem);
      std::size_t n = 0;
      progress.show(fmt::format("{} of {}: {}", at, cases.size(), to_string(c.problem)));
      verify::check_each(c, of_case, check_options, verify::host_runner(), [&](const verify::Report& report) {
        const PlanOptions& plan = of_case[n++];
        tally.count(report);
        add_report(&table, report);
        Json row = report_row(report);
        row["reference"] = reference_name(options);
        row["reproduce"] = reproduce(plan, options.bitwise, report);
        document["rows"].push_back(row);
        if (report.refused || !report.passed) {
          notes.push_back(report.refused
                              ? fmt::format("refused: {}\n", report.failure)
                              : fmt::format("{}: {}\n  {}\n", coloured("failed", Mood::kBad), report.failure,
                                            reproduce(plan, options.bitwise, report)));
        }
        return !InterruptGuard::interrupted();
      });
    }
  }
  const double seconds = seconds_since(start);
  document["summary"] = summary_json(tally, seconds);
  if (!options.output.empty()) {
    write_text_file(options.output, json_text(document));
  }
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

}  // namespace

Action add_verify(Options& options) {
  const auto o = std::make_shared<VerifyOptions>();
  options.group("Problems");
  options.texts("problem", &o->problems, "PROBLEM ...",
                "Problem strings, with lens_kv=, data=, layout=, seed= … too");
  options.texts("--file", &o->files, "FILE", "A shape file: a problem a line, # starts a comment");
  options.flag("--forever", &o->forever, "Random problems until --time-limit or Ctrl-C");
  options.number("--time-limit", &o->time_limit, "Seconds that --forever runs", 0);
  options.integer("--cases", &o->cases, "Problems after which --forever ends", 1);
  options.flag("--dense", &o->dense, "--forever draws dense 16-bit problems, head dims 8 to 256");
  options.integer("--jobs", &o->jobs, "Problems that --forever checks at once (default 1)", 1, 1024);
  options.integer("--seed", &o->seed, "First seed of --forever (default 1)");
  options.group("Checks");
  options.flag("--bitwise", &o->bitwise,
               "Run twice, with other bits in the workspace, and compare every bit");
  options.flag("--all-levels", &o->all_levels, "On every SIMD level that runs here");
  options.flag("--all-kernels", &o->all_kernels, "On every kernel of the backend that computes the problem");
  options.choice("--against", &o->against, {"reference", "cpu"},
                 "Judge by the float64 reference (default) or, quicker, by the CPU backend in fp32");
  options.flag("--json", &o->json, "Print a results document");
  options.text("--output", &o->output, "FILE",
               "Write the results document there; the table is still printed");
  o->plan.add(options);
  options.examples({
      "attn verify \"b2 hq8 hk2 sq130 sk300 d64 bf16 causal=br\"",
      "attn verify --bitwise --all-levels b1 hq4 hk4 sq77 sk77 d80 fp16 window=9,0 align=br data=drift",
      "attn verify --file bench/shapes/smoke.txt --json",
      "attn verify --forever --time-limit 2 --seed 42",
      "attn verify --forever --dense --cases 100 --jobs 2 --against cpu --seed 7",
  });
  return [o] {
    if (!o->output.empty()) {
      check_folder("--output", o->output);
    }
    return o->forever ? verify_forever(*o) : verify_cases(*o);
  };
}

}  // namespace attn::tool
