// Shared by the tests of the level amx: its kernels for a type, rows of elements, causal problems and the
// contract's bound.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/amx.hpp"
#include "cpu_test_util.hpp"
#include "reference/reference.hpp"

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

// Of a type, with head dims that fill no step of the tile registers, and more rows than a block.
inline Problem causal_problem(DType dtype, std::int64_t seqlen_q = 70, std::int64_t seqlen_kv = 300) {
  Problem p = causal_problem(seqlen_q, seqlen_kv);
  p.dtype = dtype;
  p.head_dim_qk = 40;
  p.head_dim_v = 24;
  return p;
}

// O and LSE of every row of a causal problem within the contract's bound (rule 13), and O within that of its
// column's values alone.
inline void expect_within_bound(const DenseCase& c, const std::string& what) {
  const Problem& p = c.p;
  const double smallest = p.dtype == DType::kBFloat16 ? 0x1p-133 : 0x1p-149;
  std::vector<double> o(static_cast<std::size_t>(p.head_dim_v));
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
      const reference::Row row = reference::forward_row(p, c.t, 0, h, i, o.data());
      const double epsilon = 0x1p-22 * row.logit_error;
      ASSERT_NEAR(c.lse[static_cast<std::size_t>(h * p.seqlen_q + i)], row.lse,
                  1e-3 + 2e-6 * std::abs(row.lse) + epsilon)
          << what << " row " << i;
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        double largest = 0;
        for (std::int64_t j = 0; j < row.visible; ++j) {
          const double v = core::load_element(c.v.data(), p.dtype, j * p.head_dim_v + d);
          largest = std::max(largest, std::abs(v));
        }
        const double got = core::load_element(c.o.data(), p.dtype, (i * p.heads_q + h) * p.head_dim_v + d);
        ASSERT_NEAR(got, o[static_cast<std::size_t>(d)],
                    (4 * unit(p.dtype) + 2 * epsilon) * largest + smallest)
            << what << " row " << i;
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
