// The support table: a feature a row, a backend a column, answered by support() itself, so that it cannot
// disagree with what runs. `attn list --support` prints it and the README holds its markdown.
// Tested in tests/cli/list_test.py.
#pragma once

#include <attn/plan.hpp>
#include <string>
#include <vector>

namespace attn::tool {

struct SupportRow {
  std::string feature;
  std::string problem;                   // the problem string that stands for it
  std::vector<BackendSupport> backends;  // cpu, cuda
};

[[nodiscard]] std::vector<SupportRow> support_table();

}  // namespace attn::tool
