// What the tests of conformance, numerics and negative share: every SIMD level that this machine runs, and
// calls with prepared data that are judged against the reference before a test looks at their values.
#pragma once

#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/geometry.hpp"
#include "core/numeric.hpp"
#include "verify/check.hpp"

namespace attn::testing {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The CPU backend at its best level, or at a named one.
inline PlanOptions cpu_plan(std::string level = {}, int threads = 0) {
  PlanOptions options;
  options.backend = Backend::kCpu;
  options.cpu_level = std::move(level);
  options.threads = threads;
  return options;
}

// A plan for each SIMD level that this CPU can run, best first.
inline std::vector<PlanOptions> all_levels() {
  std::vector<PlanOptions> plans;
  for (const CpuLevel& level : cpu_levels()) {
    if (level.runnable) {
      plans.push_back(cpu_plan(level.name));
    }
  }
  return plans;
}

inline verify::Case case_of(const std::string& line) {
  verify::Case c;
  const Status status = verify::parse(line, &c);
  EXPECT_TRUE(status.ok()) << line << "\n  " << status.message();
  return c;
}

// O and LSE by logical coordinates, after a call.
class Results {
 public:
  explicit Results(const verify::Buffers& buffers) : p_(buffers.problem()), t_(buffers.tensors()) {}

  [[nodiscard]] double o(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c = 0) const {
    const core::Sequence s = core::sequence_of(p_, t_, b);
    return core::load_element(t_.o.data, p_.dtype, core::q_row_offset(t_.o, s, i, h) + c);
  }
  [[nodiscard]] double lse(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const core::Sequence s = core::sequence_of(p_, t_, b);
    return core::load_element(t_.lse.data, DType::kFloat32, core::lse_offset(t_.lse, s, i, h));
  }
  // The bits of O and, with `lse`, of LSE at all rows, in logical order: comparable between layouts.
  [[nodiscard]] std::vector<float> all() const {
    std::vector<float> values;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      append_sequence(b, &values);
    }
    return values;
  }
  [[nodiscard]] std::vector<float> sequence(std::int64_t b) const {
    std::vector<float> values;
    append_sequence(b, &values);
    return values;
  }

 private:
  void append_sequence(std::int64_t b, std::vector<float>* values) const {
    const core::Sequence s = core::sequence_of(p_, t_, b);
    for (std::int64_t h = 0; h < p_.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        for (std::int64_t c = 0; c < p_.head_dim_v; ++c) {
          values->push_back(static_cast<float>(o(b, h, i, c)));
        }
        if (p_.want_lse) {
          values->push_back(static_cast<float>(lse(b, h, i)));
        }
      }
    }
  }

  const Problem& p_;
  const Tensors& t_;
};

// Equal bit for bit, where a NaN equals itself.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Values of the rows of Q, K or V, as a function of the row and channel.
using Fill = std::function<float(const verify::RowId&, std::int64_t channel)>;

struct Fills {
  Fill q;
  Fill k;
  Fill v;

  void apply(verify::Buffers& buffers) const {
    const auto rewrite = [&](verify::Which which, const Fill& fill) {
      if (fill) {
        buffers.rewrite(which, [&](const verify::RowId& id, std::span<float> row) {
          for (std::size_t c = 0; c < row.size(); ++c) {
            row[c] = fill(id, static_cast<std::int64_t>(c));
          }
        });
      }
    };
    rewrite(verify::Which::kQ, q);
    rewrite(verify::Which::kK, k);
    rewrite(verify::Which::kV, v);
  }
};

inline Fill constant(float value) {
  return [value](const verify::RowId&, std::int64_t) { return value; };
}
inline Fill key_index() {
  return [](const verify::RowId& id, std::int64_t) { return static_cast<float>(id.pos); };
}

// Runs the line at every level with the given data; each is judged, then shown to `inspect`.
inline void run_levels(const std::string& line, const std::function<void(verify::Buffers&)>& prepare,
                       const std::function<void(const Results&)>& inspect,
                       const verify::CheckOptions& options = {}) {
  const verify::Case c = case_of(line);
  verify::Judge judge(c, options, prepare);
  for (const PlanOptions& plan : all_levels()) {
    SCOPED_TRACE(plan.cpu_level + ": " + verify::to_string(c));
    const verify::Report report = judge.check(verify::host_runner(), plan);
    EXPECT_TRUE(report.passed) << report.failure;
    if (report.passed && inspect) {
      inspect(Results(judge.buffers()));
    }
  }
}

inline void run_levels(const std::string& line, const Fills& fills,
                       const std::function<void(const Results&)>& inspect = {},
                       const verify::CheckOptions& options = {}) {
  run_levels(
      line, [&](verify::Buffers& buffers) { fills.apply(buffers); }, inspect, options);
}

// Seeded data, judged only.
inline void expect_line(const std::string& line, const verify::CheckOptions& options = {}) {
  run_levels(line, std::function<void(verify::Buffers&)>{}, {}, options);
}

// What a seeded line computes at one level.
inline std::vector<float> values_of(const std::string& line, const PlanOptions& plan,
                                    std::uint8_t fill = 0xFF) {
  verify::Buffers buffers(case_of(line));
  verify::RunInfo info;
  const Status status = verify::host_runner()(buffers, plan, fill, &info);
  EXPECT_TRUE(status.ok()) << line << "\n  " << status.message();
  return Results(buffers).all();
}

inline constexpr const char* kDTypes[] = {"fp32", "fp16", "bf16"};

}  // namespace attn::testing
