// `attn list`: backends, SIMD levels, kernels; the support table; the environment variables. Tested in
// tests/cli/list_test.py.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "core/env.hpp"
#include "core/plan_impl.hpp"
#include "cpu/cpu_backend.hpp"
#include "output.hpp"
#include "results.hpp"
#include "support_table.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

struct ListOptions {
  bool support = false;
  bool env = false;
  bool markdown = false;
  bool json = false;
};

void emit(const ListOptions& options, const Table& table, const Json& json) {
  print(options.json ? json_text(json) : options.markdown ? table.markdown() : table.text());
}

void list_support(const ListOptions& options) {
  Table table({{"feature", Align::kLeft}, {"cpu", Align::kLeft}, {"cuda", Align::kLeft}});
  Json json = Json::array();
  std::vector<std::string> reasons;  // each once, below the table
  for (const SupportRow& row : support_table()) {
    std::vector<std::string> cells{row.feature};
    Json backends = Json::object();
    for (const BackendSupport& s : row.backends) {
      cells.emplace_back(s.supported ? "yes" : "–");
      backends[to_string(s.backend)] = {{"supported", s.supported}, {"reason", s.reason}};
      const std::string reason = fmt::format("{}: {}", to_string(s.backend), s.reason);
      if (!s.supported && std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
        reasons.push_back(reason);
      }
    }
    table.add(cells);
    json.push_back({{"feature", row.feature}, {"problem", row.problem}, {"backends", backends}});
  }
  emit(options, table, json);
  if (!options.json && !options.markdown) {
    for (const std::string& reason : reasons) {
      print(fmt::format("– {}\n", reason));
    }
  }
}

void list_env(const ListOptions& options) {
  Table table({{"variable", Align::kLeft}, {"now", Align::kLeft}, {"meaning", Align::kLeft, true}});
  Json json = Json::array();
  for (const core::EnvVar& variable : core::env_table()) {
    const std::optional<std::string> value = core::read_env(variable.id);
    table.add({variable.name, value.value_or("–"), variable.meaning});
    json.push_back(
        {{"name", variable.name}, {"value", value ? Json(*value) : Json()}, {"meaning", variable.meaning}});
  }
  emit(options, table, json);
}

// The kernel that a level has for a plain problem: its name is the same for all of them.
std::string kernel_of_level(const std::string& level) {
  PlanOptions plan_options;
  plan_options.backend = Backend::kCpu;
  plan_options.cpu_level = level;
  Plan plan;
  return make_plan(Problem{}, plan_options, &plan).ok() ? plan.kernel() : "–";
}

// The kernels of backends that are not named by level.
Table kernels_table(Json* json) {
  Table table({{"kernel", Align::kLeft}, {"backend", Align::kLeft}});
  (*json)["kernels"] = Json::array();
  for (const core::BackendEntry& entry : core::backends()) {
    if (entry.backend == Backend::kCpu || entry.kernels == nullptr) {
      continue;
    }
    for (const std::string& name : entry.kernels()) {
      table.add({name, to_string(entry.backend)});
      (*json)["kernels"].push_back({{"kernel", name}, {"backend", to_string(entry.backend)}});
    }
  }
  return table;
}

void list_all(const ListOptions& options) {
  Table backends({{"backend", Align::kLeft}, {"state", Align::kLeft}});
  Json json;
  json["backends"] = Json::array();
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    std::string state = "not part of this build";
    bool usable = false;
    for (const core::BackendEntry& entry : core::backends()) {
      if (entry.backend == backend) {
        const Status status = entry.support(Problem{}, PlanOptions{});
        usable = status.ok();
        state = !usable                    ? status.message()
                : backend == Backend::kCpu ? fmt::format("usable, threads: {}", cpu::thread_limit(0))
                                           : "usable";
      }
    }
    backends.add({to_string(backend), state});
    json["backends"].push_back({{"backend", to_string(backend)}, {"usable", usable}, {"state", state}});
  }
  Table levels({{"cpu level", Align::kLeft}, {"runs here", Align::kLeft}, {"kernel", Align::kLeft}});
  json["cpu_levels"] = Json::array();
  for (const CpuLevel& level : cpu_levels()) {
    const std::string kernel = level.runnable ? kernel_of_level(level.name) : "–";
    levels.add({level.name, level.runnable ? "yes" : "no", kernel});
    json["cpu_levels"].push_back({{"level", level.name},
                                  {"runnable", level.runnable},
                                  {"kernel", level.runnable ? Json(kernel) : Json()}});
  }
  const Table kernels = kernels_table(&json);
  const bool any = !json["kernels"].empty();
  if (options.json) {
    print(json_text(json));
  } else {
    print(options.markdown ? backends.markdown() + "\n" + levels.markdown()
                           : backends.text() + "\n" + levels.text());
    if (any) {
      print("\n" + (options.markdown ? kernels.markdown() : kernels.text()));
    }
  }
}

int list(const ListOptions& options) {
  if (options.support && options.env) {
    fail_usage("--support and --env are two tables; ask for one");
  }
  if (options.json && options.markdown) {
    fail_usage("--json and --markdown are two forms; ask for one");
  }
  if (options.support) {
    list_support(options);
  } else if (options.env) {
    list_env(options);
  } else {
    list_all(options);
  }
  return kSuccess;
}

}  // namespace

Action add_list(Options& options) {
  const auto o = std::make_shared<ListOptions>();
  options.flag("--support", &o->support, "The support table: features and backends");
  options.flag("--env", &o->env, "The environment variables and their values now");
  options.flag("--markdown", &o->markdown, "Print as markdown tables");
  options.flag("--json", &o->json, "Print as JSON");
  options.examples({
      "attn list",
      "attn list --support --markdown",
      "attn list --env --json",
  });
  return [o] { return list(*o); };
}

}  // namespace attn::tool
