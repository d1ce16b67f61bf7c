// The kernels of every level against plain loops: exp2 and tanh within their stated errors, packing, both
// matrix products on the packed and the direct path, at head dims around every tail.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CpuKernels : public testing::TestWithParam<std::string> {
 protected:
  const KernelTable& kernels_ = *kernels_of(GetParam());
};

// Distance from the exact value in units of the last place of the correctly rounded one.
double ulps(float got, double exact) {
  const float rounded = std::abs(static_cast<float>(exact));
  const double ulp = static_cast<double>(std::nextafter(rounded, kInfinity)) - rounded;
  return std::abs(static_cast<double>(got) - exact) / ulp;
}

TEST_P(CpuKernels, Exp2IsWithinTwoUlp) {
  std::vector<float> in;
  for (float x = -126.0F; x < 127.5F; x += 0.00013F) {
    in.push_back(x);
  }
  for (std::uint32_t bits = 0; bits < 0x42000000U; bits += 4099) {  // every exponent below 32, both signs
    in.push_back(std::bit_cast<float>(bits));
    in.push_back(-std::bit_cast<float>(bits));
  }
  std::vector<float> out(in.size());
  kernels_.exp2(in.data(), in.size(), out.data());
  double worst = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    worst = std::max(worst, ulps(out[i], std::exp2(static_cast<double>(in[i]))));
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(CpuKernels, Exp2AtItsEdges) {
  const float in[] = {0.0F,     -0.0F,  1.0F,       -1.0F, -126.0F, -126.00001F,
                      -1000.0F, -3e38F, -kInfinity, kNan,  -kNan};
  float out[std::size(in)];
  kernels_.exp2(in, std::size(in), out);
  const float expected[] = {1, 1, 2, 0.5F, 0x1p-126F, 0, 0, 0, 0, kNan, kNan};
  for (std::size_t i = 0; i < std::size(in); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(out[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(expected[i])) << in[i];
    }
  }
  // Every NaN payload that a float can carry in its upper half stays NaN.
  for (std::uint32_t high = 0x7F81; high <= 0xFFFF; high = high == 0x7FFF ? 0xFF81 : high + 1) {
    const float nan = std::bit_cast<float>(high << 16 | 0x1234U);
    float result = 0;
    kernels_.exp2(&nan, 1, &result);
    ASSERT_TRUE(std::isnan(result)) << std::hex << high;
  }
}

TEST_P(CpuKernels, TanhIsWithinFiveUlp) {
  std::vector<float> in;
  for (std::uint32_t bits = 0x00800000U; bits < 0x41800000U; bits += 997) {  // normal numbers up to 16
    in.push_back(std::bit_cast<float>(bits));
    in.push_back(-std::bit_cast<float>(bits));
  }
  std::vector<float> out(in.size());
  kernels_.tanh(in.data(), in.size(), out.data());
  double worst = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    worst = std::max(worst, ulps(out[i], std::tanh(static_cast<double>(in[i]))));
  }
  EXPECT_LE(worst, 5.0);
  RecordProperty("worst_ulp", std::to_string(worst));
  const float edges[] = {0.0F, -0.0F, 10.0F, -10.0F, 3e38F, kInfinity, -kInfinity, kNan};
  float at[std::size(edges)];
  kernels_.tanh(edges, std::size(edges), at);
  const float expected[] = {0.0F, -0.0F, 1, -1, 1, 1, -1};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(at[i]), std::bit_cast<std::uint32_t>(expected[i])) << edges[i];
  }
  EXPECT_TRUE(std::isnan(at[7]));
}

// K or V rows of one dtype behind pointers, with their values as floats.
struct Rows {
  Rows(int count, int dim, DType dtype, std::uint32_t seed) : dim_(dim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < count; ++i) {
      bytes.emplace_back(static_cast<std::size_t>(dim) *
                         size_of(dtype));  // each row ends where its memory ends
      for (int c = 0; c < dim; ++c) {
        core::store_element(bytes.back().data(), dtype, c, normal(random));
        values.push_back(core::load_element(bytes.back().data(), dtype, c));
      }
    }
    for (const auto& row : bytes) {
      pointers.push_back(row.data());
    }
  }
  [[nodiscard]] float at(int row, int c) const { return values[static_cast<std::size_t>(row * dim_ + c)]; }
  int dim_;
  std::vector<std::vector<unsigned char>> bytes;
  std::vector<const void*> pointers;
  std::vector<float> values;
};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr int kDims[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 72, 80, 100, 129, 257, 512};

TEST_P(CpuKernels, ScoresOfPackedKeys) {
  const int keys = 2 * kernels_.panel_keys;
  for (const DType dtype : kDTypes) {
    for (const int dim : kDims) {
      const Rows k(keys, dim, dtype, 1);
      const int padded = (dim + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
      const Floats panels(static_cast<std::size_t>(keys * dim));
      const Floats stage(static_cast<std::size_t>(kernels_.panel_keys * padded));
      kernels_.pack_k(k.pointers.data(), keys, dim, dtype, stage.data(), panels.data());
      for (int rows = 2; rows <= kernels_.block_rows; rows += 2) {
        const Rows q(rows, dim, DType::kFloat32, 2);
        const Floats packed(static_cast<std::size_t>(rows * dim));
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < dim; ++c) {
            packed[static_cast<std::size_t>(c * rows + r)] = q.at(r, c);
          }
        }
        const Floats s(kMaxBlockRows * kScoreStride);
        kernels_.scores(packed.data(), rows, dim, panels.data(), 1, 2, -0.25F, s.data());
        for (int r = 0; r < rows; ++r) {
          EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(r * kScoreStride)]))
              << "panel 0 was not asked for";
          for (int key = kernels_.panel_keys; key < keys; ++key) {
            double exact = 0;
            double size = 0;
            for (int c = 0; c < dim; ++c) {
              exact += -0.25 * q.at(r, c) * k.at(key, c);
              size += 0.25 * std::abs(q.at(r, c) * k.at(key, c));
            }
            ASSERT_NEAR(s[static_cast<std::size_t>(r * kScoreStride + key)], exact, 0x1p-22 * size)
                << "dim " << dim << " rows " << rows;
          }
        }
      }
    }
  }
}

TEST_P(CpuKernels, ScoresDirect) {
  const int keys = 11;
  for (const DType dtype : kDTypes) {
    for (const int dim : kDims) {
      const Rows k(keys, dim, dtype, 3);
      const int stride = (dim + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
      for (int rows = 1; rows <= kMaxDirectRows; ++rows) {
        const Rows q(rows, dim, DType::kFloat32, 4);
        const Floats padded(static_cast<std::size_t>(rows * stride));
        std::fill_n(padded.data(), rows * stride, 0.0F);
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < dim; ++c) {
            padded[static_cast<std::size_t>(r * stride + c)] = q.at(r, c);
          }
        }
        const Floats s(kMaxBlockRows * kScoreStride);
        kernels_.scores_direct(padded.data(), rows, stride, dim, k.pointers.data(), 1, keys, dtype, 0.5F,
                               s.data());
        for (int r = 0; r < rows; ++r) {
          EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(r * kScoreStride)]));
          EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(r * kScoreStride + keys)]));
          for (int key = 1; key < keys; ++key) {
            double exact = 0;
            double size = 0;
            for (int c = 0; c < dim; ++c) {
              exact += 0.5 * q.at(r, c) * k.at(key, c);
              size += 0.5 * std::abs(q.at(r, c) * k.at(key, c));
            }
            ASSERT_NEAR(s[static_cast<std::size_t>(r * kScoreStride + key)], exact, 0x1p-22 * size)
                << "dim " << dim << " rows " << rows;
          }
        }
      }
    }
  }
}

// O ← rescale · O + P·V over keys 5 … 69 of a tile, on both paths.
TEST_P(CpuKernels, Accumulation) {
  const int begin = 5;
  const int end = 70;
  const int packed_end = 96;
  for (const DType dtype : kDTypes) {
    for (const int dim : kDims) {
      const Rows v(packed_end, dim, dtype, 5);
      const int stride = (dim + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
      const Floats panels(static_cast<std::size_t>(packed_end * stride));
      ASSERT_TRUE(kernels_.pack_v(v.pointers.data(), begin, end, dim, dtype, packed_end, panels.data()));
      for (int rows = 1; rows <= kernels_.block_rows; ++rows) {
        for (const bool direct : {false, true}) {
          if (direct ? rows > kMaxDirectRows : rows % 2 != 0) {
            continue;
          }
          const Rows p(rows, packed_end, DType::kFloat32, 6);
          const Floats s(kMaxBlockRows * kScoreStride);
          const Floats o(static_cast<std::size_t>(rows * stride));
          const Floats low(static_cast<std::size_t>(rows * stride));
          float rescale[kMaxBlockRows];
          for (int r = 0; r < rows; ++r) {
            rescale[r] = 1.0F / static_cast<float>(r + 1);
            std::copy_n(p.values.begin() + r * packed_end, packed_end, s.data() + r * kScoreStride);
            std::fill_n(o.data() + r * stride, stride, 3.0F);
            std::fill_n(low.data() + r * stride, stride, 0.0F);
          }
          const Accumulation a{s.data(), rows, begin, end, rescale, o.data(), low.data(), stride};
          if (direct) {
            kernels_.accumulate_direct(a, v.pointers.data(), dim, dtype);
          } else {
            kernels_.accumulate(a, panels.data(), packed_end, dim);
          }
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < dim; ++c) {
              double exact = 3.0 * rescale[r];
              double size = exact;
              for (int key = begin; key < end; ++key) {
                exact += static_cast<double>(p.at(r, key)) * v.at(key, c);
                size += std::abs(p.at(r, key) * v.at(key, c));
              }
              const std::size_t at = static_cast<std::size_t>(r * stride + c);
              ASSERT_NEAR(static_cast<double>(o[at]) + low[at], exact, 0x1p-22 * size)
                  << "dim " << dim << " rows " << rows << " direct " << direct << " column " << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(CpuKernels, PackingReportsWhatIsNotFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const int dim : {1, 17, 64}) {
      Rows v(4, dim, DType::kFloat32, 7);
      core::store_element(v.bytes[2].data(), DType::kFloat32, dim - 1, bad);
      const Floats panels(static_cast<std::size_t>(4 * (dim + 64)));
      EXPECT_FALSE(kernels_.pack_v(v.pointers.data(), 0, 4, dim, DType::kFloat32, 4, panels.data()));
      EXPECT_TRUE(kernels_.pack_v(v.pointers.data(), 0, 2, dim, DType::kFloat32, 4, panels.data()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuKernels, testing::ValuesIn(runnable_levels()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace attn::cpu
