// `attn explain`: what would run a problem, and why the others would not. Runs nothing. Tested in
// tests/cli/explain_test.py.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "core/plan_impl.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"
#include "verify/case.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainOptions {
  std::vector<std::string> problems;
  PlanFlags plan;
  bool json = false;
};

// A sentence for each backend there is, also for one that this build does not have.
std::vector<BackendSupport> considered(const Problem& problem, const PlanOptions& options) {
  const std::vector<BackendSupport> built = support(problem, options);
  std::vector<BackendSupport> all;
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    const auto it = std::find_if(built.begin(), built.end(),
                                 [&](const BackendSupport& s) { return s.backend == backend; });
    all.push_back(it != built.end() ? *it : BackendSupport{backend, false, "not part of this build"});
  }
  return all;
}

// "name: value" lines of the backend, as an object.
Json notes_json(const std::vector<std::string>& notes) {
  Json json = Json::object();
  for (const std::string& note : notes) {
    const std::size_t colon = note.find(": ");
    if (colon == std::string::npos) {
      json[note] = true;
    } else {
      json[note.substr(0, colon)] = note.substr(colon + 2);
    }
  }
  return json;
}

struct Explanation {
  std::string text;
  Json json;
  bool possible = false;
};

Explanation explain_one(const std::string& line, const PlanOptions& options) {
  // A case's own tokens (lengths, layout, data) are welcome, so that a line of `attn verify` can be pasted.
  verify::Case c;
  check(verify::parse(line, &c));
  const Problem& problem = c.problem;
  check(validate(problem));
  Explanation result;
  result.json["problem"] = to_string(problem);
  Plan plan;
  const Status status = make_plan(problem, options, &plan);
  if (!status.ok() && status.code() != StatusCode::kUnsupported &&
      status.code() != StatusCode::kUnavailable) {
    check(status);
  }
  result.possible = status.ok();
  Json backends = Json::array();
  std::string refusals;
  for (const BackendSupport& s : considered(problem, options)) {
    backends.push_back({{"backend", to_string(s.backend)}, {"supported", s.supported}, {"reason", s.reason}});
    const bool told = plan.valid() &&
                      plan.explain().find(fmt::format("not {}:", to_string(s.backend))) != std::string::npos;
    if (!s.supported && !told) {
      refusals += fmt::format("not {}: {}\n", to_string(s.backend), s.reason);
    }
  }
  if (plan.valid()) {
    result.json["backend"] = to_string(plan.backend());
    result.json["kernel"] = plan.kernel();
    result.json["splits"] = plan.num_splits();
    result.json["workspace_bytes"] = plan.workspace_bytes();
    result.json["notes"] = notes_json(plan.impl()->backend_plan->notes);
    result.text = plan.explain() + refusals;
  } else {
    result.json["backend"] = nullptr;
    result.json["refusal"] = status.message();
    result.text =
        fmt::format("problem: {}\nbackend: none; {}\n{}", to_string(problem), status.message(), refusals);
  }
  result.json["backends"] = backends;
  return result;
}

int explain(const ExplainOptions& options) {
  const std::vector<std::string> lines = join_problems(options.problems);
  if (lines.empty()) {
    fail_usage("a problem is missing, such as \"b1 hq8 sq1024 d64 fp32\"");
  }
  Json all = Json::array();
  bool possible = true;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Explanation one = explain_one(lines[i], options.plan.plan_options());
    possible = possible && one.possible;
    all.push_back(one.json);
    if (!options.json) {
      print((i > 0 ? "\n" : "") + one.text);
    }
  }
  if (options.json) {
    print(json_text(all));
  }
  return possible ? kSuccess : kUnsupported;
}

}  // namespace

Action add_explain(Options& options) {
  const auto o = std::make_shared<ExplainOptions>();
  options.group("Problems");
  options.texts("problem", &o->problems, "PROBLEM ...", "Problem strings");
  options.flag("--json", &o->json, "Print an array, an object a problem");
  o->plan.add(options);
  options.examples({
      "attn explain \"b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=br\"",
      "attn explain --backend cpu --threads 1 b1 hq8 sq1 sk8192 d128 fp32",
  });
  return [o] { return explain(*o); };
}

}  // namespace attn::tool
