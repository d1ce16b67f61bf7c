// `attn bench`: time, arithmetic rate, share of the machine's own measured peak, and memory traffic of
// problems; as a table and in the form of bench/results. Tested in tests/cli/bench_test.py.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "cpu/cpu_backend.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"
#include "verify/buffers.hpp"
#include "verify/check.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::vector<std::string> problems;
  std::vector<std::string> files;
  PlanFlags plan;
  double min_time = 0.5;
  std::int64_t min_samples = 5;
  bool check = false;
  std::string what = "bench";
  std::string machine;
  std::string output;
  bool json = false;
};

Table bench_table(bool with_check) {
  std::vector<Column> columns{{"problem", Align::kLeft, true},
                              {"kernel", Align::kLeft},
                              {"median"},
                              {"p10"},
                              {"p90"},
                              {"n"},
                              {"GFLOP/s"},
                              {"of peak"},
                              {"GB/s"}};
  if (with_check) {
    columns.push_back({"max |ΔO|"});
  }
  return Table(columns);
}

// Measures one case into a row of each; false where no backend takes it.
bool bench_one(const BenchOptions& options, const verify::Case& c, Progress* progress, Table* table,
               Json* rows) {
  const PlanOptions plan_options = options.plan.plan_options();
  const std::string line = to_string(c);
  Json row;
  row["problem"] = line;
  {
    Plan plan;
    const Status status = make_plan(c.problem, plan_options, &plan);
    if (status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kUnavailable) {
      table->add({line, "refused", "–", "–", "–", "–", "–", "–", "–", "–"});
      row["impl"] = nullptr;
      row["refused"] = status.message();
      rows->push_back(row);
      return false;
    }
    check(status, line);
  }
  verify::Buffers buffers(c);
  Execution execution(c.problem, plan_options);
  const Work work = work_of(c.problem, buffers.tensors());
  const int threads = cpu::thread_limit(plan_options.threads);
  const std::optional<double> peak = peak_gflops(execution.plan().kernel(), threads);
  const Timing timing = execution.time(
      buffers.tensors(), {options.min_time, options.min_samples},
      [&](std::int64_t samples) { progress->show(fmt::format("{} samples of {}", samples, line)); });
  const double gflops = work.flops / timing.median * 1e-9;
  const double gbs = work.bytes / timing.median * 1e-9;
  row["impl"] = "libattn:" + execution.plan().kernel();
  row["threads"] = threads;
  row["splits"] = execution.plan().num_splits();
  row["median_us"] = timing.median * 1e6;
  row["p10_us"] = timing.p10 * 1e6;
  row["p90_us"] = timing.p90 * 1e6;
  row["samples"] = timing.samples;
  row["visible_scores"] = work.visible_scores;
  row["flops"] = work.flops;
  row["gflops"] = gflops;
  row["share_of_peak"] = peak ? Json(gflops / *peak) : Json();
  row["bytes"] = work.bytes;
  row["gbs"] = gbs;
  std::string error;
  if (options.check) {
    const verify::Report report = verify::check(c, plan_options);
    row["max_error"] = report.max_error_o;
    row["max_error_of_bound"] = report.max_ratio_o;
    row["passed"] = report.passed;
    row["reference"] = "float64";
    error = report.passed ? error_text(report.max_error_o) : coloured("FAILED", Mood::kBad);
  }
  table->add({line, execution.plan().kernel(), time_text(timing.median), time_text(timing.p10),
              time_text(timing.p90), fmt::format("{}", timing.samples), rate_text(gflops),
              peak ? percent_text(gflops / *peak) : "–", rate_text(gbs), error});
  rows->push_back(row);
  return true;
}

int bench(const BenchOptions& options) {
  const std::vector<verify::Case> cases = cases_of(options.problems, options.files);
  if (!options.output.empty()) {
    check_folder("--output", options.output);
  }
  const int threads = cpu::thread_limit(static_cast<int>(options.plan.threads));
  Json document =
      results_document(options.what, options.machine.empty() ? machine_name() : options.machine, threads);
  Table table = bench_table(options.check);
  bool all = true;
  bool good = true;
  std::optional<double> peak;
  {
    Progress progress;
    Json rows = Json::array();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      progress.show(fmt::format("{} of {}", i + 1, cases.size()));
      all = bench_one(options, cases[i], &progress, &table, &rows) && all;
    }
    for (const Json& row : rows) {
      good = good && row.value("passed", true);
      if (!peak && row["impl"].is_string()) {
        peak = peak_gflops(row["impl"].get<std::string>().substr(8), threads);  // after "libattn:"
      }
    }
    document["rows"] = rows;
    progress.show("memory bandwidth");
    document["ceilings"]["fma_peak_gflops"] = peak ? Json(*peak) : Json();
    document["ceilings"]["stream_gbs"] = cpu::measure_stream_gbs(threads, 0.2);
  }
  if (!options.output.empty()) {
    write_text_file(options.output, json_text(document));
  }
  if (options.json) {
    print(json_text(document));
  } else {
    print(table.text());
    print(fmt::format("{} thread{}; measured here: FMA peak {} GFLOP/s, reading memory {} GB/s\n", threads,
                      threads == 1 ? "" : "s", peak ? rate_text(*peak) : "–",
                      rate_text(document["ceilings"]["stream_gbs"].get<double>())));
    for (const Json& row : document["rows"]) {
      if (row.contains("refused")) {
        print(fmt::format("refused: {}\n", row["refused"].get<std::string>()));
      }
    }
  }
  return !good ? kCheckFailed : !all ? kUnsupported : kSuccess;
}

}  // namespace

Action add_bench(Options& options) {
  const auto o = std::make_shared<BenchOptions>();
  options.group("Problems");
  options.texts("problem", &o->problems, "PROBLEM ...", "Problem strings");
  options.texts("--file", &o->files, "FILE", "A shape file: a problem a line, # starts a comment");
  options.group("Measurement");
  options.number("--min-time", &o->min_time, "Seconds of measured runs a problem (default 0.5)", 0);
  options.integer("--min-samples", &o->min_samples, "Samples a problem at least (default 5)", 1, 1000000);
  options.flag("--check", &o->check, "Compare with the float64 reference too");
  options.group("Results");
  options.text("--output", &o->output, "FILE", "Write a results document; it appears when complete");
  options.text("--what", &o->what, "NAME", "Its field \"what\" (default bench)");
  options.text("--machine", &o->machine, "NAME", "Its machine (default: from the CPU's name)");
  options.flag("--json", &o->json, "Print the results document instead of the table");
  o->plan.add(options);
  options.examples({
      "attn bench --threads 1 \"b1 hq8 sq2048 d128 fp32\" \"b1 hq8 sq2048 d128 fp32 causal=br\"",
      "attn bench b1 hq32 hk8 sq1 sk8192 d128 bf16 --min-time 0.1 --json",
      "attn bench --file bench/shapes/smoke.txt --min-time 0.05 --output results.json",
  });
  return [o] { return bench(*o); };
}

}  // namespace attn::tool
