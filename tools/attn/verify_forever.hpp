// The options of `attn verify`, and its endless form: random problems on several threads. Tested in
// tests/cli/verify_test.py.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "measure.hpp"
#include "verify/check.hpp"

namespace attn::tool {

struct VerifyOptions {
  std::vector<std::string> problems;
  std::vector<std::string> files;
  PlanFlags plan;
  bool all_levels = false;
  bool all_kernels = false;
  bool bitwise = false;
  std::string against = "reference";
  bool forever = false;
  bool dense = false;
  double time_limit = -1;   // below 0: not given
  std::int64_t cases = -1;  // below 0: not given
  std::int64_t seed = -1;   // below 0: not given
  std::int64_t jobs = 1;
  bool json = false;
  std::string output;
};

// The plans that the flags ask for, and those that one problem runs on: with --all-kernels, each kernel of
// each.
[[nodiscard]] std::vector<PlanOptions> plans_of(const VerifyOptions& options);
[[nodiscard]] std::vector<PlanOptions> plans_for(const VerifyOptions& options,
                                                 const std::vector<PlanOptions>& plans,
                                                 const Problem& problem);
[[nodiscard]] verify::CheckOptions check_options_of(const VerifyOptions& options);
[[nodiscard]] const char* reference_name(const VerifyOptions& options);

// Random problems until their number or the time is up, Ctrl-C, or for ever. Case n of a seed is the same on
// every machine.
int verify_forever(const VerifyOptions& options);

}  // namespace attn::tool
