// Rows of verify and selftest: see verify_report.hpp.
#include "verify_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "args.hpp"
#include "command.hpp"

namespace attn::tool {

Table report_table() {
  return Table({{"problem", Align::kLeft, true},
                {"kernel", Align::kLeft},
                {"rows"},
                {"max |ΔO|"},
                {"of bound"},
                {"max |ΔLSE|"},
                {"result", Align::kLeft}});
}

void add_report(Table* table, const verify::Report& report) {
  if (report.refused) {
    table->add({report.line, "–", "–", "–", "–", "–", "refused"});
    return;
  }
  const std::vector<std::string_view> tokens = split(report.line, ' ');
  const bool has_lse = std::find(tokens.begin(), tokens.end(), "lse") != tokens.end();
  table->add({report.line, report.kernel, fmt::format("{}", report.rows_checked),
              error_text(report.max_error_o), percent_text(report.max_ratio_o),
              has_lse ? error_text(report.max_error_lse) : "–",
              report.passed ? coloured("passed", Mood::kGood) : coloured("FAILED", Mood::kBad)});
}

nlohmann::ordered_json report_row(const verify::Report& report) {
  nlohmann::ordered_json row;
  row["problem"] = report.line;
  row["impl"] = "libattn:" + report.kernel;
  row["kernel"] = report.kernel;
  row["passed"] = report.passed;
  row["refused"] = report.refused;
  row["max_error"] = report.max_error_o;
  row["max_error_of_bound"] = report.max_ratio_o;
  row["max_error_lse"] = report.max_error_lse;
  row["max_error_lse_of_bound"] = report.max_ratio_lse;
  row["rows_checked"] = report.rows_checked;
  row["workspace_bytes"] = report.workspace_bytes;
  row["reference"] = "float64";
  row["failure"] = report.failure;
  return row;
}

std::string reproduce(const PlanOptions& plan, bool bitwise, const verify::Report& report) {
  std::string line = "attn verify";
  if (plan.backend != Backend::kAuto) {
    line += fmt::format(" --backend {}", to_string(plan.backend));
  }
  if (plan.device != 0) {
    line += fmt::format(" --device {}", plan.device);
  }
  if (!plan.kernel.empty()) {
    line += fmt::format(" --config {}", plan.kernel);
  }
  if (!plan.cpu_level.empty()) {
    line += fmt::format(" --level {}", plan.cpu_level);
  }
  if (plan.threads > 0) {
    line += fmt::format(" --threads {}", plan.threads);
  }
  line += bitwise ? " --bitwise" : "";
  return line + fmt::format(" \"{}\"", report.line);
}

void Tally::count(const verify::Report& report) {
  (report.refused ? refused : report.passed ? passed : failed) += 1;
  if (report.refused) {
    ++refusals[report.failure];
    return;
  }
  KernelTally& kernel = kernels[report.kernel];
  (report.passed ? kernel.passed : kernel.failed) += 1;
  if (report.max_ratio_o >= worst_ratio) {
    worst_ratio = report.max_ratio_o;
    worst_line = report.line;
  }
  if (report.max_ratio_o >= kernel.max_ratio_o) {
    kernel.max_ratio_o = report.max_ratio_o;
    kernel.worst_line = report.line;
  }
  kernel.max_ratio_lse = std::max(kernel.max_ratio_lse, report.max_ratio_lse);
}

int Tally::exit_code() const {
  return failed > 0 ? kCheckFailed : passed == 0 ? kUnsupported : kSuccess;
}

Table Tally::table() const {
  Table table(
      {{"kernel", Align::kLeft}, {"passed"}, {"failed"}, {"worst |ΔO| of bound"}, {"worst |ΔLSE| of bound"}});
  for (const auto& [name, kernel] : kernels) {
    table.add({name, fmt::format("{}", kernel.passed),
               kernel.failed == 0 ? "0" : coloured(fmt::format("{}", kernel.failed), Mood::kBad),
               percent_text(kernel.max_ratio_o), percent_text(kernel.max_ratio_lse)});
  }
  return table;
}

nlohmann::ordered_json summary_json(const Tally& tally, double seconds) {
  nlohmann::ordered_json json;
  json["passed"] = tally.passed;
  json["failed"] = tally.failed;
  json["refused"] = tally.refused;
  json["seconds"] = seconds;
  json["worst_error_of_bound"] = tally.worst_ratio;
  json["worst_problem"] = tally.worst_line;
  return json;
}

}  // namespace attn::tool
