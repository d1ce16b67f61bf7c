// How the reports of the judge are shown: a table row, a results row. Shared by verify and selftest.
// Tested in tests/cli.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "output.hpp"
#include "verify/check.hpp"

namespace attn::tool {

[[nodiscard]] Table report_table();
void add_report(Table* table, const verify::Report& report);
// problem, impl, kernel, max_error, max_error_of_bound, …, passed, refused, failure.
[[nodiscard]] nlohmann::ordered_json report_row(const verify::Report& report);

}  // namespace attn::tool
