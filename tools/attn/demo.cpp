// `attn demo`: attention of a real model from sample files and of larger seeded problems, timed and checked
// against the float64 reference and the model's own output. `./dev demo` runs it. Tested in
// tests/cli/demo_test.py.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "cpu/cpu_backend.hpp"
#include "demo_rows.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

struct DemoOptions {
  std::vector<std::string> samples;
  PlanFlags plan;
  double min_time = 0.2;
  bool small = false;
  bool json = false;
};

struct Seeded {
  const char* name;
  const char* problem;
};
// Large enough to show the rate, small enough for seconds on one core.
constexpr Seeded kLarge[] = {
    {"d64", "b1 hq8 hk8 sq2048 sk2048 d64 fp32 causal=br"},
    {"d128", "b1 hq8 hk8 sq2048 sk2048 d128 fp32 causal=br"},
    {"decode", "b1 hq32 hk8 sq1 sk8192 d128 fp32 causal=br"},
};
constexpr Seeded kSmall[] = {
    {"d64", "b1 hq2 hk2 sq256 sk256 d64 fp32 causal=br"},
    {"d128", "b1 hq2 hk2 sq256 sk256 d128 fp32 causal=br"},
    {"decode", "b1 hq8 hk2 sq1 sk1024 d128 fp32 causal=br"},
};

// On a GPU, where there is one.
constexpr Seeded kGpu[] = {
    {"d64", "b1 hq32 hk8 sq4096 sk4096 d64 bf16 causal=br"},
    {"d128", "b1 hq16 hk16 sq4096 sk4096 d128 bf16 causal=br"},
    {"d256", "b1 hq8 hk8 sq4096 sk4096 d256 bf16"},
};

bool gpu_can(const PlanOptions& options, const char* problem) {
  Problem p;
  if (options.backend == Backend::kCpu || !parse(problem, &p).ok()) {
    return false;
  }
  const std::vector<BackendSupport> entries = support(p, options);
  return std::any_of(entries.begin(), entries.end(), [](const BackendSupport& entry) {
    return entry.backend == Backend::kCuda && entry.supported;
  });
}

Table demo_table() {
  return Table({{"", Align::kLeft},
                {"problem", Align::kLeft, true},
                {"backend", Align::kLeft},
                {"time"},
                {"GFLOP/s"},
                {"peak"},
                {"error"},
                {"bound"},
                {"model"},
                {"", Align::kLeft}});
}

void add_row(Table* table, const DemoRow& row) {
  table->add({row.name, row.problem, row.kernel, time_text(row.seconds), rate_text(row.gflops),
              row.share_of_peak ? percent_text(*row.share_of_peak) : "–", error_text(row.max_error),
              percent_text(row.max_error_of_bound), row.model_error ? error_text(*row.model_error) : "–",
              row.agrees() ? coloured("ok", Mood::kGood) : coloured("WRONG", Mood::kBad)});
}

Json json_of(const DemoRow& row, const std::string& source) {
  Json json;
  json["source"] = source;
  json["name"] = row.name;
  json["problem"] = row.problem;
  json["impl"] = "libattn:" + row.kernel;
  json["median_us"] = row.seconds * 1e6;
  json["gflops"] = row.gflops;
  json["share_of_peak"] = row.share_of_peak ? Json(*row.share_of_peak) : Json();
  json["max_error"] = row.max_error;
  json["max_error_of_bound"] = row.max_error_of_bound;
  json["model_error"] = row.model_error ? Json(*row.model_error) : Json();
  json["model_tolerance"] = row.model_error ? Json(row.model_tolerance) : Json();
  json["agrees"] = row.agrees();
  json["failure"] = row.failure;
  json["reference"] = "float64";
  return json;
}

int demo(const DemoOptions& options) {
  std::vector<Sample> samples;
  for (const std::string& path : options.samples) {
    samples.push_back(open_sample(path));
  }
  if (samples.empty()) {
    fail_usage("a sample file is missing, such as samples/minilm-attention.safetensors");
  }
  const int threads = cpu::thread_limit(static_cast<int>(options.plan.threads));
  const TimingOptions timing{options.min_time, 5};
  Json document = results_document("demo", machine_name(), threads);
  Table table = demo_table();
  std::vector<std::string> failures;
  std::size_t agreeing = 0;
  std::optional<double> peak;
  const auto take = [&](const DemoRow& row, const std::string& source) {
    add_row(&table, row);
    document["rows"].push_back(json_of(row, source));
    if (const std::optional<double> known = peak_gflops(row.kernel, threads)) {
      peak = known;
    }
    agreeing += row.agrees() ? 1 : 0;
    if (!row.agrees()) {
      failures.push_back(fmt::format("{} {}: {}", source, row.name, row.failure));
    }
  };
  {
    Progress progress;
    for (const Sample& sample : samples) {
      table.section(sample.model.empty() ? sample.path : fmt::format("{} ({})", sample.path, sample.model));
      for (const std::string& layer : sample.layers) {
        progress.show(fmt::format("{} {}", sample.path, layer));
        take(layer_row(sample, layer, options.plan, timing), sample.path);
      }
    }
    table.section("seeded data");
    for (const Seeded& seeded : options.small ? kSmall : kLarge) {
      progress.show(seeded.problem);
      take(seeded_row(seeded.name, seeded.problem, options.plan, timing), "seeded");
    }
    if (!options.small && gpu_can(options.plan.plan_options(), kGpu[0].problem)) {
      table.section("seeded data, on the GPU");
      for (const Seeded& seeded : kGpu) {
        progress.show(seeded.problem);
        take(seeded_row(seeded.name, seeded.problem, options.plan, timing), "seeded");
      }
    }
  }
  document["ceilings"]["fma_peak_gflops"] = peak ? Json(*peak) : Json();
  const std::size_t total = document["rows"].size();
  document["summary"] = {{"agreeing", agreeing}, {"rows", total}};
  if (options.json) {
    print(json_text(document));
  } else {
    print(table.text());
    print(
        fmt::format("\npeak   share of the fp32 FMA peak measured just now, {} GFLOP/s on {} thread{}\n"
                    "error  max |ΔO| against a float64 reference; bound: as a share of its bound, (4u + "
                    "2ε)·max|V| of the row,\n"
                    "       at most 100 %; u = 2⁻²² (fp32), 2⁻¹² (fp16), 2⁻⁹ (bf16); see docs/numerics.md\n"
                    "model  max |ΔO| against the model's own attention output; agrees up to 8u·max|V|\n"
                    "{} of {} rows agree\n",
                    peak ? rate_text(*peak) : "–", threads, threads == 1 ? "" : "s", agreeing, total));
    for (const std::string& failure : failures) {
      print(fmt::format("{}: {}\n", coloured("wrong", Mood::kBad), failure));
    }
  }
  return agreeing == total ? kSuccess : kCheckFailed;
}

}  // namespace

Action add_demo(Options& options) {
  const auto o = std::make_shared<DemoOptions>();
  options.texts("sample", &o->samples, "FILE.safetensors ...",
                "Sample files: NAME.q, .k, .v and .o of each layer");
  options.number("--min-time", &o->min_time, "Seconds of measured runs a row (default 0.2)", 0);
  options.flag("--small", &o->small, "Smaller seeded rows, for slow builds");
  options.flag("--json", &o->json, "Print a results document");
  o->plan.add(options);
  options.examples({
      "attn demo samples/minilm-attention.safetensors",
      "attn demo samples/minilm-attention.safetensors --small --min-time 0 --json",
  });
  return [o] { return demo(*o); };
}

}  // namespace attn::tool
