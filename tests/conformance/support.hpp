// What the tests of conformance, numerics and negative share: every plan that computes a problem on this
// machine (each SIMD level; on a Hopper GPU each kernel too), and calls with prepared data that are judged
// against the reference before a test looks at their values. ATTN_TEST_BACKEND=cpu or =cuda keeps them to one
// backend, ATTN_TEST_LEVEL to one SIMD level.
#pragma once

#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/geometry.hpp"
#include "core/numeric.hpp"
#include "core/plan_impl.hpp"
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

// A plan for each SIMD level that this CPU can run, best first; only for that of ATTN_TEST_LEVEL, where it is
// set.
inline std::vector<PlanOptions> all_levels() {
  const char* only = std::getenv("ATTN_TEST_LEVEL");
  std::vector<PlanOptions> plans;
  for (const CpuLevel& level : cpu_levels()) {
    if (level.runnable && (only == nullptr || level.name == only)) {
      plans.push_back(cpu_plan(level.name));
    }
  }
  EXPECT_FALSE(plans.empty()) << "ATTN_TEST_LEVEL=" << only << " does not run here";
  return plans;
}

// What a plan runs on, for messages.
inline std::string name_of(const PlanOptions& plan) {
  return plan.backend == Backend::kCuda ? "cuda " + plan.kernel : plan.cpu_level;
}

// Whether a test of this run is to check the backend: environment ATTN_TEST_BACKEND, by default both.
inline bool is_wanted(const char* backend) {
  const char* only = std::getenv("ATTN_TEST_BACKEND");
  return only == nullptr || std::string(only) == backend;
}

inline PlanOptions cuda_plan(std::string kernel = {}) {
  PlanOptions options;
  options.backend = Backend::kCuda;
  options.kernel = std::move(kernel);
  return options;
}

// Why the CUDA backend computes nothing on this machine; empty where it does.
inline const std::string& why_no_cuda() {
  static const std::string why = [] {
    if (core::find_backend(Backend::kCuda) == nullptr) {
      return std::string("this build has no CUDA backend");
    }
    Problem p;
    Plan plan;
    EXPECT_TRUE(parse("b1 hq1 hk1 sq1 sk1 d64 bf16", &p).ok());
    const Status status = make_plan(p, cuda_plan(), &plan);
    return status.ok() ? std::string() : status.message();
  }();
  return why;
}

// The only reasons for which the CUDA backend may refuse a well-formed problem; empty: it must take it. A
// list of its own, so that a kernel that goes missing is a failure and not one more refusal.
inline const char* outside_cuda(const Problem& p) {
  const auto is_tiled = [](std::int64_t d) { return d % 8 == 0; };
  return p.dtype == DType::kFloat32                            ? "fp32"
         : p.varlen_q || p.varlen_kv                           ? "variable lengths"
         : p.seqused_kv                                        ? "seqused_kv"
         : p.page_size > 0                                     ? "paged K and V"
         : p.seqlen_new > 0 || p.rotary_dim > 0                ? "append and rotary"
         : p.num_splits > 1                                    ? "num_splits above 1"
         : !is_tiled(p.head_dim_qk) || !is_tiled(p.head_dim_v) ? "a head dim that is no multiple of 8"
         : std::max(p.head_dim_qk, p.head_dim_v) > 256         ? "a head dim above 256"
         : p.softcap != 0 && (p.softcap > 0x1p100F || p.softcap < 0x1p-100F)
             ? "softcap outside 2^-100 to 2^100"
             : "";
}

// What the CUDA backend was given in this process, printed at its end.
class CudaTally : public ::testing::Environment {
 public:
  std::map<std::string, std::int64_t> problems;  // by kernel
  std::map<std::string, std::int64_t> refused;   // by reason
  bool asked = false;

  void TearDown() override {
    if (asked && is_wanted("cuda") && !why_no_cuda().empty()) {
      std::printf("[   CUDA   ] skipped: %s\n", why_no_cuda().c_str());
    }
    for (const auto& [kernel, count] : problems) {
      std::printf("[   CUDA   ] %s: %lld problems\n", kernel.c_str(), static_cast<long long>(count));
    }
    for (const auto& [reason, count] : refused) {
      std::printf("[   CUDA   ] refused, %s: %lld problems\n", reason.c_str(), static_cast<long long>(count));
    }
  }
};
inline CudaTally& cuda_tally() {
  static auto* const tally = new CudaTally;  // owned by GoogleTest
  [[maybe_unused]] static const auto* const added = ::testing::AddGlobalTestEnvironment(tally);
  return *tally;
}
// Made before main: an environment must be there before the first test.
[[maybe_unused]] inline const CudaTally& kCudaTally = cuda_tally();

enum class Kernels { kAll, kChosen };

// Every plan for the problem on this machine: each SIMD level and, on a Hopper GPU, each kernel that computes
// it (kChosen: the one that is taken unasked, without its name). A refusal that outside_cuda does not list
// fails.
inline std::vector<PlanOptions> all_plans(const Problem& p, Kernels kernels = Kernels::kAll) {
  std::vector<PlanOptions> plans;
  if (is_wanted("cpu")) {
    plans = all_levels();
  }
  CudaTally& tally = cuda_tally();
  tally.asked = true;
  if (!is_wanted("cuda")) {
    return plans;
  }
  if (!why_no_cuda().empty()) {
    if (!is_wanted("cpu")) {
      ADD_FAILURE() << "ATTN_TEST_BACKEND=cuda: " << why_no_cuda();
    }
    return plans;
  }
  if (!validate(p).ok()) {
    return plans;
  }
  const std::string outside = outside_cuda(p);
  const Status can = core::find_backend(Backend::kCuda)->support(p, cuda_plan());
  if (!can.ok()) {
    EXPECT_FALSE(outside.empty()) << to_string(p) << "\n  is refused by the CUDA backend: " << can.message();
    EXPECT_FALSE(can.message().empty());
    ++tally.refused[outside];
    return plans;
  }
  const std::vector<PlanOptions> cuda = verify::each_kernel(p, cuda_plan());
  for (const PlanOptions& plan : cuda) {
    Plan made;
    const Status status = make_plan(p, plan, &made);
    EXPECT_TRUE(status.ok()) << plan.kernel << " is a candidate of " << to_string(p)
                             << "\n  but: " << status.message();
    ++tally.problems[status.ok() ? made.kernel() : plan.kernel];
    if (kernels == Kernels::kChosen) {
      plans.push_back(cuda_plan());
      break;
    }
    plans.push_back(plan);
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

inline std::vector<PlanOptions> all_plans(const std::string& line, Kernels kernels = Kernels::kAll) {
  return all_plans(case_of(line).problem, kernels);
}

// The problem of a plain call: what the views say and nothing else.
inline Problem problem_of(const TensorView& q, const TensorView& k, const TensorView& v) {
  Problem p;
  p.dtype = q.dtype;
  p.batch = q.shape[0];
  p.seqlen_q = q.shape[1];
  p.heads_q = q.shape[2];
  p.head_dim_qk = q.shape[3];
  p.seqlen_kv = k.shape[1];
  p.heads_kv = k.shape[2];
  p.head_dim_v = v.shape[3];
  return p;
}

// One plain call on host views, on any backend: what attn::forward does where the memory is the backend's
// own.
inline Status call(const PlanOptions& plan, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& o) {
  Tensors t;
  t.q = q;
  t.k = k;
  t.v = v;
  t.o = o;
  return verify::call(problem_of(q, k, v), plan, t);
}

// Runs the line on every plan with the given data; each is judged, then shown to `inspect`.
inline void run_plans(const std::string& line, const std::function<void(verify::Buffers&)>& prepare,
                      const std::function<void(const Results&)>& inspect,
                      const verify::CheckOptions& options = {}) {
  const verify::Case c = case_of(line);
  verify::Judge judge(c, options, prepare);
  for (const PlanOptions& plan : all_plans(c.problem)) {
    SCOPED_TRACE(name_of(plan) + ": " + verify::to_string(c));
    const verify::Report report = judge.check(verify::host_runner(), plan);
    EXPECT_TRUE(report.passed) << report.failure;
    if (report.passed && inspect) {
      inspect(Results(judge.buffers()));
    }
  }
}

inline void run_plans(const std::string& line, const Fills& fills,
                      const std::function<void(const Results&)>& inspect = {},
                      const verify::CheckOptions& options = {}) {
  run_plans(
      line, [&](verify::Buffers& buffers) { fills.apply(buffers); }, inspect, options);
}

// Seeded data, judged only.
inline void expect_line(const std::string& line, const verify::CheckOptions& options = {}) {
  run_plans(line, std::function<void(verify::Buffers&)>{}, {}, options);
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
