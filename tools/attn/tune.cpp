// `attn tune`: measures every kernel of this build that computes a problem, on the user's own device, and
// can keep the best in a file that ATTN_TUNE_FILE names. Tested in tests/cli/tune_test.py.
#include <fmt/format.h>

#include <algorithm>
#include <attn/version.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "core/plan_impl.hpp"
#include "core/tune_file.hpp"
#include "cpu/cpu_backend.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"
#include "verify/buffers.hpp"
#include "verify/check.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

// Another kernel than the library's own choice is taken only if it is faster by more than this: what two
// measurements of one kernel differ by.
constexpr double kMargin = 0.01;

struct TuneOptions {
  std::vector<std::string> problems;
  std::vector<std::string> files;
  PlanFlags plan;
  double min_time = 0.2;
  std::int64_t min_samples = 5;
  std::int64_t rounds = 3;
  bool check = false;
  std::string store;
  bool json = false;
};

struct Candidate {
  std::string kernel;
  std::unique_ptr<Execution> execution;
  std::vector<Timing> rounds;
  bool wrong = false;

  // The round with the least median: what else runs on the machine only slows one down.
  [[nodiscard]] const Timing& best() const {
    return *std::min_element(rounds.begin(), rounds.end(),
                             [](const Timing& a, const Timing& b) { return a.median < b.median; });
  }
};

// The kernels to measure, the one first that runs without being asked for.
std::vector<Candidate> candidates_of(const Problem& problem, const PlanOptions& options,
                                     std::string* device) {
  Plan plan;
  check(make_plan(problem, options, &plan), to_string(problem));
  const core::BackendEntry* entry = core::find_backend(plan.backend());
  std::vector<Candidate> found;
  found.push_back({plan.kernel(), std::make_unique<Execution>(problem, options), {}, false});
  if (entry == nullptr || entry->candidates == nullptr) {
    return found;
  }
  *device = entry->device_name(options);
  for (const std::string& name : entry->candidates(problem, options)) {
    if (name != plan.kernel() && options.kernel.empty()) {
      PlanOptions named = options;
      named.backend = plan.backend();
      named.kernel = name;
      found.push_back({name, std::make_unique<Execution>(problem, named), {}, false});
    }
  }
  return found;
}

Table tune_table(bool with_check) {
  std::vector<Column> columns{{"problem", Align::kLeft, true},
                              {"kernel", Align::kLeft},
                              {"median"},
                              {"p10"},
                              {"p90"},
                              {"GFLOP/s"},
                              {"of now"},
                              {"", Align::kLeft}};
  if (with_check) {
    columns.push_back({"check", Align::kLeft});
  }
  return Table(columns);
}

void measure(const TuneOptions& options, const verify::Case& c, std::vector<Candidate>* candidates,
             const Tensors& tensors, Progress* progress) {
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    for (Candidate& candidate : *candidates) {
      progress->show(fmt::format("{}, round {} of {}", candidate.kernel, round + 1, options.rounds));
      candidate.rounds.push_back(candidate.execution->time(tensors, {options.min_time, options.min_samples}));
    }
  }
  if (options.check) {
    for (Candidate& candidate : *candidates) {
      PlanOptions named = options.plan.plan_options();
      named.backend = candidate.execution->plan().backend();
      named.kernel = candidate.execution->plan().impl()->options.kernel;
      candidate.wrong = !verify::check(c, named).passed;
    }
  }
}

// Measures one problem into rows of each; false if a kernel was wrong.
bool tune_one(const TuneOptions& options, const verify::Case& c, Progress* progress, Table* table, Json* rows,
              Json* choices) {
  const std::string line = to_string(c);
  std::string device;
  std::vector<Candidate> candidates = candidates_of(c.problem, options.plan.plan_options(), &device);
  verify::Buffers buffers(c);
  const Work work = work_of(c.problem, buffers.tensors());
  measure(options, c, &candidates, buffers.tensors(), progress);

  const Candidate* chosen = candidates.front().wrong ? nullptr : &candidates.front();
  for (const Candidate& candidate : candidates) {
    if (!candidate.wrong &&
        (chosen == nullptr || (candidate.best().median < chosen->best().median * (1 - kMargin)))) {
      chosen = &candidate;
    }
  }
  const double now = candidates.front().best().median;
  bool good = true;
  for (const Candidate& candidate : candidates) {
    const Timing& timing = candidate.best();
    const double gflops = work.flops / timing.median * 1e-9;
    const bool first = &candidate == &candidates.front();
    const std::string mark = &candidate == chosen ? (first ? "best, as now" : "best") : first ? "now" : "";
    std::vector<std::string> cells{first ? line : "",
                                   candidate.kernel,
                                   time_text(timing.median),
                                   time_text(timing.p10),
                                   time_text(timing.p90),
                                   rate_text(gflops),
                                   fmt::format("{:.3f}", now / timing.median),
                                   mark};
    if (options.check) {
      cells.push_back(candidate.wrong ? coloured("FAILED", Mood::kBad) : "passed");
    }
    table->add(cells);
    Json row{{"problem", line},
             {"impl", "libattn:" + candidate.kernel},
             {"kernel", candidate.kernel},
             {"median_us", timing.median * 1e6},
             {"p10_us", timing.p10 * 1e6},
             {"p90_us", timing.p90 * 1e6},
             {"samples", timing.samples},
             {"gflops", gflops},
             {"now", first},
             {"best", &candidate == chosen}};
    if (options.check) {
      row["passed"] = !candidate.wrong;
    }
    rows->push_back(row);
    good = good && !candidate.wrong;
  }
  if (chosen != nullptr && !device.empty()) {
    choices->push_back({{"device", device},
                        {"library", version()},
                        {"problem", to_string(c.problem)},
                        {"kernel", chosen->kernel},
                        {"median_us", chosen->best().median * 1e6},
                        {"unasked", candidates.front().kernel},
                        {"unasked_us", now * 1e6}});
  }
  return good;
}

// The choices of a file that is there already, but for those that are made anew.
Json kept_choices(const std::string& path, const Json& fresh) {
  Json kept = Json::array();
  if (!std::filesystem::exists(path)) {
    return kept;
  }
  std::vector<core::TunedChoice> known;
  const Status status = core::read_tune_file(path, &known);
  const Json document = status.ok() ? Json::parse(read_text_file(path), nullptr, false) : Json();
  if (!status.ok() || document.is_discarded()) {
    throw Failure{kFile, fmt::format("--store is {}: {}; allowed: a new file, or one that attn tune wrote",
                                     path, status.ok() ? "its text is not UTF-8" : status.message())};
  }
  for (const Json& choice : document["choices"]) {
    const bool again = std::any_of(fresh.begin(), fresh.end(), [&](const Json& f) {
      return f["device"] == choice["device"] && f["library"] == choice["library"] &&
             f["problem"] == choice["problem"];
    });
    if (!again) {
      kept.push_back(choice);
    }
  }
  return kept;
}

void store(const std::string& path, const Json& fresh) {
  Json choices = kept_choices(path, fresh);
  choices.insert(choices.end(), fresh.begin(), fresh.end());
  write_text_file(path, json_text(Json{{"schema", 1}, {"what", "attn-tune"}, {"choices", choices}}));
}

int tune(const TuneOptions& options) {
  const std::vector<verify::Case> cases = cases_of(options.problems, options.files);
  if (!options.store.empty()) {
    check_folder("--store", options.store);
    (void)kept_choices(options.store, Json::array());  // a bad file is told before the work, not after it
  }
  const int threads = cpu::thread_limit(static_cast<int>(options.plan.threads));
  Json document = results_document("tune", machine_name(), threads);
  document["rows"] = Json::array();
  Json choices = Json::array();
  Table table = tune_table(options.check);
  bool good = true;
  {
    Progress progress;
    for (const verify::Case& c : cases) {
      good = tune_one(options, c, &progress, &table, &document["rows"], &choices) && good;
    }
  }
  if (!options.store.empty()) {
    store(options.store, choices);
  }
  if (options.json) {
    document["choices"] = choices;
    print(json_text(document));
  } else {
    print(table.text());
    if (!options.store.empty()) {
      print(fmt::format("{} choice{} in {}; taken where ATTN_TUNE_FILE={}\n", choices.size(),
                        choices.size() == 1 ? "" : "s", options.store, options.store));
    }
  }
  return good ? kSuccess : kCheckFailed;
}

}  // namespace

Action add_tune(Options& options) {
  const auto o = std::make_shared<TuneOptions>();
  options.group("Problems");
  options.texts("problem", &o->problems, "PROBLEM ...", "Problem strings");
  options.texts("--file", &o->files, "FILE", "A shape file: a problem a line, # starts a comment");
  options.group("Measurement");
  options.number("--min-time", &o->min_time, "Seconds of measured runs a kernel and round (default 0.2)", 0);
  options.integer("--min-samples", &o->min_samples, "Samples a kernel and round at least (default 5)", 1,
                  1000000);
  options.integer("--rounds", &o->rounds, "Rounds in which the kernels take turns (default 3)", 1, 1000);
  options.flag("--check", &o->check,
               "Compare each kernel with the float64 reference; wrong ones are not taken");
  options.group("Results");
  options.text("--store", &o->store, "FILE",
               "Keep the best kernel of each problem there, for ATTN_TUNE_FILE");
  options.flag("--json", &o->json, "Print a results document instead of the table");
  o->plan.add(options);
  options.examples({
      "attn tune \"b1 hq8 sq512 d64 fp32\"",
      "attn tune --backend cpu --check --store tuned.json \"b1 hq8 sq512 d64 fp32 causal=br\"",
      "ATTN_TUNE_FILE=tuned.json attn explain \"b1 hq8 sq512 d64 fp32 causal=br\"",
  });
  return [o] { return tune(*o); };
}

}  // namespace attn::tool
