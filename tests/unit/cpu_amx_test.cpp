// The level amx: its kernels of every type against plain loops, and whole bf16 problems with what tile
// products take for something else: subnormal queries and keys, tiny values, huge ones, a large scale, and
// all of these in keys that rows do not see. Skipped where the CPU or the system has no AMX.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu_amx_test_util.hpp"

namespace attn::cpu {
namespace {

constexpr DType kBf16 = DType::kBFloat16;

// All types.
class CpuAmxTypes : public CpuAmxType {};

INSTANTIATE_TEST_SUITE_P(Types, CpuAmxTypes,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16), name_of_type);

TEST_P(CpuAmxTypes, ScoresAgreeWithPlainLoops) {
  const int keys = 96;
  for (const int dim : {1, 2, 15, 16, 17, 31, 32, 33, 56, 64, 80, 128, 192, 512}) {
    ElementRows k(GetParam(), keys, dim, 1);
    k.set(40, dim - 1, 0x1.fffffep-3F);  // all bits of every part
    const Floats panels(floats_of(keys, dim));
    ASSERT_TRUE(kernels_->pack_k(k.pointers.data(), keys, dim, GetParam(), nullptr, panels.data()));
    for (const int count : {1, 15, 16, 17, 32}) {
      const int rows = (count + 15) / 16 * 16;
      const ElementRows q(GetParam(), count, dim, 2);
      const Floats packed(floats_of(rows, dim));
      ASSERT_TRUE(kernels_->pack_q(q.pointers.data(), count, rows, dim, GetParam(), nullptr, packed.data()));
      const Floats s(static_cast<std::size_t>(kernels_->score_floats));
      kernels_->enter();
      kernels_->scores(packed.data(), rows, dim, panels.data(), 1, 3, -0.25F, s.data());
      kernels_->leave();
      for (int r = 0; r < count; ++r) {
        EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(r * kScoreStride + 31)])) << "not asked for";
        EXPECT_TRUE(std::isnan(s[static_cast<std::size_t>(r * kScoreStride + 96)])) << "not asked for";
        for (int key = 32; key < keys; ++key) {
          double exact = 0;
          double size = 0;
          for (int c = 0; c < dim; ++c) {
            const double product = -0.25 * q.at(r, c) * static_cast<double>(k.at(key, c));
            exact += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(s[static_cast<std::size_t>(r * kScoreStride + key)], exact, 0x1p-22 * size)
              << "dim " << dim << " rows " << count << " key " << key;
        }
      }
    }
  }
}

// Softmax, then O ← rescale · O + P·V, over keys [32, end) of a tile of 256: one chunk and more.
TEST_P(CpuAmxTypes, SoftmaxAndAccumulationAgreeWithPlainLoops) {
  const int tile = 256;
  const int begin = 32;
  const float factor = 0.5F;
  // Three parts of a weight hold all of a float, two 16 bits; bf16's unit is 2⁻⁷.
  const bool fp32 = GetParam() == DType::kFloat32;
  const bool bf16 = GetParam() == DType::kBFloat16;
  const double of_weight = fp32 ? 1e-6 : bf16 ? 0x1.1p-8 : 0x1.2p-16;
  const double of_sum = fp32 ? 1e-6 : 1e-5;
  const double of_output = fp32 ? 0x1p-20 : bf16 ? 0x1.1p-8 : 0x1p-15;
  for (const int end : {64, 96, 128, 160, 256}) {
    for (const int dim : {1, 15, 16, 17, 32, 48, 64, 80, 128, 512}) {
      const ElementRows v(GetParam(), tile, dim, 3);
      const Floats panels(floats_of(tile, dim));
      ASSERT_TRUE(kernels_->pack_v(v.pointers.data(), begin, end, dim, GetParam(), tile, panels.data()));
      for (const int count : {1, 16, 29, 32}) {
        const int rows = (count + 15) / 16 * 16;
        const int stride = (dim + 15) / 16 * 16;
        std::mt19937 random(4);
        std::normal_distribution<float> normal;
        const Floats s(static_cast<std::size_t>(kernels_->score_floats));
        std::fill_n(s.data(), kMaxBlockRows * kScoreStride, 0.0F);
        std::vector<double> scores;
        for (int r = 0; r < count; ++r) {
          for (int key = begin; key < end; ++key) {
            const float x = key % 7 == r % 7 ? -kInf : 8 * normal(random);
            s[static_cast<std::size_t>(r * kScoreStride + key)] = x;
            scores.push_back(x);
          }
        }
        float max[kMaxBlockRows];
        float sum[kMaxBlockRows];
        float low[kMaxBlockRows] = {};
        alignas(64) float rescale[kMaxBlockRows] = {};
        std::fill_n(max, kMaxBlockRows, 1.5F);
        std::fill_n(sum, kMaxBlockRows, 2.0F);
        const Floats o(static_cast<std::size_t>(rows * stride));
        const Floats o_low(static_cast<std::size_t>(rows * stride));
        std::fill_n(o.data(), rows * stride, 3.0F);
        std::fill_n(o_low.data(), rows * stride, 0.0F);
        kernels_->softmax({s.data(), count, begin, end, max, sum, low, rescale, factor});
        kernels_->enter();
        kernels_->accumulate({s.data(), rows, begin, end, rescale, o.data(), o_low.data(), stride},
                             panels.data(), tile, dim);
        kernels_->leave();
        for (int r = 0; r < count; ++r) {
          const double* x = scores.data() + static_cast<std::ptrdiff_t>(r) * (end - begin);
          double top = 1.5;
          for (int j = 0; j < end - begin; ++j) {
            top = std::max(top, factor * x[j]);
          }
          ASSERT_FLOAT_EQ(max[r], static_cast<float>(top));
          const double shrink = std::exp2(1.5 - top);
          double total = 2 * shrink;
          for (int j = 0; j < end - begin; ++j) {
            const double p = std::exp2(factor * x[j] - top);
            total += p;
            ASSERT_NEAR(kernels_->probability(s.data(), r, begin + j), p, of_weight * p);
          }
          ASSERT_NEAR(rescale[r], shrink, 1e-6 * shrink);
          ASSERT_NEAR(sum[r] + low[r], total, of_sum * total);
          for (int c = 0; c < dim; ++c) {
            double exact = 3 * shrink;
            double size = exact;
            for (int j = 0; j < end - begin; ++j) {
              const double p = std::exp2(factor * x[j] - top);
              exact += p * v.at(begin + j, c);
              size += p * std::abs(v.at(begin + j, c));
            }
            const auto at = static_cast<std::size_t>(r * stride + c);
            ASSERT_NEAR(o[at] + o_low[at], exact, of_output * size)
                << "dim " << dim << " rows " << count << " column " << c;
          }
        }
      }
    }
  }
}

// Rule 6: whatever stands in a key that a row does not see changes no bit of it, also where it takes the
// exact way; and bits do not depend on which rows share a task.
TEST_P(CpuAmxTypes, UnseenKeysHaveNoInfluence) {
  const Problem p = causal_problem(GetParam());
  DenseCase plain(p);
  ASSERT_TRUE(plain.run(cpu_options("amx", 1)).ok());
  for (const float x : {0x1p-130F, 0x1p-110F, 0x1p-80F, 3.0e38F, 0x1p60F, kInf, -kInf, std::nanf("")}) {
    DenseCase c(p);
    const std::int64_t key = 262;  // seen by queries from 32 on
    for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
      core::store_element(c.k.data(), p.dtype, key * p.head_dim_qk + d, x);
    }
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      core::store_element(c.v.data(), p.dtype, key * p.head_dim_v + d, x);
    }
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    const std::size_t unseen = static_cast<std::size_t>(32 * p.heads_q * p.head_dim_v) * size_of(p.dtype);
    EXPECT_EQ(std::memcmp(c.o.data(), plain.o.data(), unseen), 0) << x;
    EXPECT_NE(std::memcmp(c.o.data(), plain.o.data(), c.o.size()), 0) << x;
    DenseCase two(p);
    two.k = c.k;
    two.v = c.v;
    two.t.k.data = two.k.data();
    two.t.v.data = two.v.data();
    ASSERT_TRUE(two.run(cpu_options("amx", 2)).ok());
    EXPECT_EQ(two.o, c.o) << x;
  }
}

// bf16.
class CpuAmx : public CpuAmxType {};

INSTANTIATE_TEST_SUITE_P(Types, CpuAmx, testing::Values(kBf16), name_of_type);

TEST_P(CpuAmx, PackingReportsWhatTheProductsWouldNotTake) {
  for (const int dim : {1, 40, 64}) {
    ElementRows x(kBf16, 32, dim, 5);
    const Floats panels(floats_of(32, dim));
    const auto k = [&] {
      return kernels_->pack_k(x.pointers.data(), 32, dim, kBf16, nullptr, panels.data());
    };
    const auto v = [&] { return kernels_->pack_v(x.pointers.data(), 0, 32, dim, kBf16, 32, panels.data()); };
    const auto q = [&] {
      return kernels_->pack_q(x.pointers.data(), 32, 32, dim, kBf16, nullptr, panels.data());
    };
    for (const float fine : {0.0F, -0.0F, 0x1p-100F, -0x1p-100F, 3.0e38F}) {
      x.set(17, dim - 1, fine);
      EXPECT_TRUE(q() && k() && v()) << fine;
    }
    for (const float subnormal : {0x1p-127F, -0x1p-133F}) {
      x.set(17, dim - 1, subnormal);
      EXPECT_FALSE(q()) << subnormal;
      EXPECT_FALSE(k()) << subnormal;
      EXPECT_FALSE(v()) << subnormal;
    }
    for (const float unfit : {0x1p-101F, -0x1p-120F, INFINITY, -INFINITY, NAN}) {
      x.set(17, dim - 1, unfit);
      EXPECT_FALSE(v()) << unfit;
      EXPECT_TRUE(q() && k()) << unfit;
    }
  }
}

// Whole problems whose parts are far from 1: powers of two that make them subnormal, and the other factor
// that brings logits back to ordinary size.
TEST_P(CpuAmx, TinyAndHugePartsKeepTheBound) {
  struct Variant {
    const char* what;
    float q, k, v, scale;
  };
  for (const Variant& t : {Variant{"subnormal queries", 0x1p-128F, 0x1p120F, 1, 0x1p5F},
                           {"subnormal keys", 0x1p120F, 0x1p-128F, 1, 0x1p5F},
                           {"tiny products, large scale", 0x1p-60F, 0x1p-60F, 1, 0x1p118F},
                           {"huge products, small scale", 0x1p60F, 0x1p60F, 1, 0x1p-122F},
                           {"values of 2^-100", 1, 1, 0x1p-100F, 0.125F},
                           {"values of 2^-115", 1, 1, 0x1p-115F, 0.125F},
                           {"values of 2^-126", 1, 1, 0x1p-126F, 0.125F},
                           {"values of 2^100", 1, 1, 0x1p100F, 0.125F}}) {
    Problem p = causal_problem(kBf16);
    p.softmax_scale = t.scale;
    DenseCase c(p);
    scale_all(&c.q, p.dtype, t.q);
    scale_all(&c.k, p.dtype, t.k);
    scale_all(&c.v, p.dtype, t.v);
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    expect_within_bound(c, t.what);
  }
}

// Rule 7: a subnormal query element times an infinite key is infinite, not NaN.
TEST_P(CpuAmx, SubnormalTimesInfinityIsInfinite) {
  const Problem p = causal_problem(kBf16, 40, 40);
  DenseCase c(p);
  for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
    core::store_element(c.k.data(), kBf16, 3 * p.head_dim_qk + d, d == 5 ? -INFINITY : 1.0F);
  }
  core::store_element(c.q.data(), kBf16, 39 * p.heads_q * p.head_dim_qk + 5, 0x1p-130F);
  ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
  // Key 3's logit is −∞ for that row: weight 0, no NaN.
  EXPECT_TRUE(std::isfinite(c.lse[39]));
}

TEST_P(CpuAmx, ExplainNamesTheTileProducts) {
  Problem p = causal_problem(kBf16, 100, 100);
  Plan plan;
  ASSERT_TRUE(make_plan(p, cpu_options("amx"), &plan).ok());
  EXPECT_NE(plan.explain().find("tile products: AMX"), std::string::npos) << plan.explain();
  p.softmax_scale = 0x1p100F;
  ASSERT_TRUE(make_plan(p, cpu_options("amx"), &plan).ok());
  EXPECT_NE(plan.explain().find("tile products: fp32"), std::string::npos) << plan.explain();
}

}  // namespace
}  // namespace attn::cpu
