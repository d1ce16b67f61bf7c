// The rows of `attn demo`: the layers of a sample file, and larger problems on seeded data.
// Tested in tests/cli/demo_test.py.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure.hpp"

namespace attn::tool {

struct DemoRow {
  std::string name;     // "layer0"
  std::string problem;  // its string
  std::string kernel;
  double seconds = 0;  // median
  double gflops = 0;
  std::optional<double> share_of_peak;
  double max_error = 0;           // against the float64 reference
  double max_error_of_bound = 0;  // at most 1 when right (contract, rule 13)
  bool reference_agrees = false;
  std::optional<double> model_error;  // max |ΔO| against the model's own output
  double model_tolerance = 0;
  std::string failure;

  [[nodiscard]] bool model_agrees() const { return !model_error || *model_error <= model_tolerance; }
  [[nodiscard]] bool agrees() const { return reference_agrees && model_agrees(); }
};

struct Sample {
  std::string path;
  std::string model;  // as its metadata says; empty: unknown
  std::vector<std::string> layers;
};

// The layers whose q, k and v the file holds, in its order. Throws Failure.
[[nodiscard]] Sample open_sample(const std::string& path);
[[nodiscard]] DemoRow layer_row(const Sample& sample, const std::string& layer, const PlanFlags& plan,
                                const TimingOptions& timing);
// A problem on seeded data, between poison and guards.
[[nodiscard]] DemoRow seeded_row(const std::string& name, const std::string& problem, const PlanFlags& plan,
                                 const TimingOptions& timing);

}  // namespace attn::tool
