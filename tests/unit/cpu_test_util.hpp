// Shared by the tests of the CPU backend: every runnable level, seeded data, one dense problem in memory.
#pragma once

#include <attn/attn.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "cpu/cpu_backend.hpp"
#include "cpu/levels.hpp"

namespace attn::cpu {

inline std::vector<std::string> runnable_levels() {
  std::vector<std::string> names;
  for (const CpuLevel& level : levels()) {
    if (level.runnable) {
      names.push_back(level.name);
    }
  }
  return names;
}

// Memory at a multiple of 64 bytes, filled with NaN.
class Floats {
 public:
  explicit Floats(std::size_t count)
      : data_(static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64 + 64))) {
    std::memset(data_.get(), 0xFF, count * sizeof(float));
  }
  [[nodiscard]] float* data() const { return data_.get(); }
  float& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
};

// Dense Q, K, V of a problem, normal, and its outputs.
class DenseCase {
 public:
  explicit DenseCase(const Problem& problem, std::uint32_t seed = 1) : p(problem), random_(seed) {
    q = values(p.batch * p.seqlen_q * p.heads_q * p.head_dim_qk);
    k = values(p.batch * p.seqlen_kv * p.heads_kv * p.head_dim_qk);
    v = values(p.batch * p.seqlen_kv * p.heads_kv * p.head_dim_v);
    o.assign(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads_q * p.head_dim_v) * size_of(p.dtype),
             0x55);
    lse.assign(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads_q), 12345.0F);
    t.q = TensorView::bshd(q.data(), p.dtype, p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk);
    t.k = TensorView::bshd(k.data(), p.dtype, p.batch, p.seqlen_kv, p.heads_kv, p.head_dim_qk);
    t.v = TensorView::bshd(v.data(), p.dtype, p.batch, p.seqlen_kv, p.heads_kv, p.head_dim_v);
    t.o = TensorView::bshd(o.data(), p.dtype, p.batch, p.seqlen_q, p.heads_q, p.head_dim_v);
    if (p.want_lse) {
      t.lse = TensorView::lse(lse.data(), p.batch, p.heads_q, p.seqlen_q);
    }
  }
  DenseCase(const DenseCase&) = delete;
  DenseCase& operator=(const DenseCase&) = delete;

  Status run(const PlanOptions& options) const {
    Plan plan;
    if (Status status = make_plan(p, options, &plan); !status.ok()) {
      return status;
    }
    const Floats workspace(plan.workspace_bytes() / sizeof(float) + 1);
    return attn::run(plan, t, workspace.data(), plan.workspace_bytes());
  }

  Problem p;
  Tensors t;
  std::vector<unsigned char> q, k, v, o;
  std::vector<float> lse;

 private:
  std::vector<unsigned char> values(std::int64_t count) {
    std::vector<unsigned char> data(static_cast<std::size_t>(count) * size_of(p.dtype));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) {
      core::store_element(data.data(), p.dtype, i, normal(random_));
    }
    return data;
  }
  std::mt19937 random_;
};

// One sequence, two query heads of a key/value head, causal, LSE too.
inline Problem causal_problem(std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  Problem p;
  p.dtype = DType::kFloat32;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = seqlen_q;
  p.seqlen_kv = seqlen_kv;
  p.head_dim_qk = 24;
  p.head_dim_v = 20;
  p.causal = true;
  p.alignment = Alignment::kBottomRight;
  p.want_lse = true;
  return p;
}

// u of rule 13.
inline double unit(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-22 : dtype == DType::kFloat16 ? 0x1p-12 : 0x1p-9;
}

inline PlanOptions cpu_options(const std::string& level = "", int threads = 0) {
  PlanOptions options;
  options.backend = Backend::kCpu;
  options.cpu_level = level;
  options.threads = threads;
  return options;
}

}  // namespace attn::cpu
