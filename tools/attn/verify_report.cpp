// Rows of verify and selftest: see verify_report.hpp.
#include "verify_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "args.hpp"

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

}  // namespace attn::tool
