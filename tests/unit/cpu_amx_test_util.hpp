// Shared by the tests of the level amx: its kernels for a type, rows of elements, causal problems and the
// contract's bound.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/amx.hpp"
#include "cpu_test_util.hpp"

namespace attn::cpu {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// The parameter is the type of the elements.
class CpuAmxType : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const KernelTable* level = kernels_of("amx");
    if (level == nullptr) {
      GTEST_SKIP() << "no AMX-BF16 here, or the system does not grant it";
    }
    kernels_ = level->tiles_of[static_cast<std::size_t>(GetParam())];
    ASSERT_NE(kernels_, nullptr);
    ASSERT_EQ(kernels_->tile_parts, GetParam() == DType::kFloat32   ? 3
                                    : GetParam() == DType::kFloat16 ? 2
                                                                    : 1);
  }
  // Of packed rows.
  [[nodiscard]] std::size_t floats_of(int rows, int dim) const {
    return static_cast<std::size_t>(rows) *
           static_cast<std::size_t>((dim + kAmxStep - 1) / kAmxStep * kAmxStep) *
           static_cast<std::size_t>(kernels_->tile_parts) / 2;
  }
  const KernelTable* kernels_ = nullptr;
};

inline std::string name_of_type(const testing::TestParamInfo<DType>& type) {
  return to_string(type.param);
}

// Rows each of whose memory ends where the row ends.
struct ElementRows {
  ElementRows(DType type, int count, int dim, std::uint32_t seed) : dtype(type) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < count; ++i) {
      bytes.emplace_back(static_cast<std::size_t>(dim) * size_of(dtype));
      for (int c = 0; c < dim; ++c) {
        set(i, c, normal(random));
      }
      pointers.push_back(bytes.back().data());
    }
  }
  [[nodiscard]] float at(int row, int c) const {
    return core::load_element(bytes[static_cast<std::size_t>(row)].data(), dtype, c);
  }
  void set(int row, int c, float v) {
    core::store_element(bytes[static_cast<std::size_t>(row)].data(), dtype, c, v);
  }
  DType dtype;
  std::vector<std::vector<unsigned char>> bytes;
  std::vector<const void*> pointers;
};

inline Problem causal_problem(DType dtype, std::int64_t seqlen_q = 70, std::int64_t seqlen_kv = 300) {
  Problem p;
  p.dtype = dtype;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = seqlen_q;
  p.seqlen_kv = seqlen_kv;
  p.head_dim_qk = 40;
  p.head_dim_v = 24;
  p.causal = true;
  p.alignment = Alignment::kBottomRight;
  p.want_lse = true;
  return p;
}

// O and LSE of every row within the contract's bound (rule 13), from the elements as they are stored.
inline void expect_within_bound(const DenseCase& c, const std::string& what) {
  const Problem& p = c.p;
  const double unit = p.dtype == DType::kFloat32 ? 0x1p-22 : p.dtype == DType::kFloat16 ? 0x1p-12 : 0x1p-9;
  const double smallest = p.dtype == DType::kBFloat16 ? 0x1p-133 : 0x1p-149;
  const auto q_at = [&](std::int64_t i, std::int64_t h, std::int64_t d) {
    return core::load_element(c.q.data(), p.dtype, (i * p.heads_q + h) * p.head_dim_qk + d);
  };
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
      const std::int64_t seen = std::min(p.seqlen_kv, i + 1 + p.seqlen_kv - p.seqlen_q);
      std::vector<double> s;
      double top = -INFINITY;
      double epsilon = 0;
      for (std::int64_t j = 0; j < seen; ++j) {
        double dot = 0;
        double size = 0;
        for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
          const double product = static_cast<double>(q_at(i, h, d)) *
                                 core::load_element(c.k.data(), p.dtype, j * p.head_dim_qk + d);
          dot += product;
          size += std::abs(product);
        }
        s.push_back(dot * p.scale());
        top = std::max(top, s.back());
        epsilon = std::max(epsilon, 0x1p-22 * std::abs(p.scale()) * size);
      }
      double sum = 0;
      for (double& x : s) {
        x = std::exp(x - top);
        sum += x;
      }
      const double lse = top + std::log(sum);
      ASSERT_NEAR(c.lse[static_cast<std::size_t>(h * p.seqlen_q + i)], lse,
                  1e-3 + 2e-6 * std::abs(lse) + epsilon)
          << what << " row " << i;
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        double o = 0;
        double largest = 0;
        for (std::int64_t j = 0; j < seen; ++j) {
          const double v = core::load_element(c.v.data(), p.dtype, j * p.head_dim_v + d);
          o += s[static_cast<std::size_t>(j)] / sum * v;
          largest = std::max(largest, std::abs(v));
        }
        const double got = core::load_element(c.o.data(), p.dtype, (i * p.heads_q + h) * p.head_dim_v + d);
        ASSERT_NEAR(got, o, (4 * unit + 2 * epsilon) * largest + smallest) << what << " row " << i;
      }
    }
  }
}

inline void scale_all(std::vector<unsigned char>* x, DType dtype, float by) {
  const auto count = static_cast<std::int64_t>(x->size() / size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    core::store_element(x->data(), dtype, i, core::load_element(x->data(), dtype, i) * by);
  }
}

}  // namespace attn::cpu
