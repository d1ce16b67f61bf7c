// The level amx in fp32 and fp16, whose elements go through the tile registers as sums of bf16 numbers: what
// they must not take, and whole problems at the edges of that. (The kernels against plain loops:
// cpu_amx_test.cpp.) Skipped where the CPU or the system has no AMX.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu_amx_test_util.hpp"

namespace attn::cpu {
namespace {

class CpuAmxParts : public CpuAmxType {
 protected:
  [[nodiscard]] static bool fp32() { return GetParam() == DType::kFloat32; }
};

INSTANTIATE_TEST_SUITE_P(Types, CpuAmxParts, testing::Values(DType::kFloat32, DType::kFloat16), name_of_type);

// The largest score's probability is 1 to the bit, whatever the factor.
TEST_P(CpuAmxParts, TheLargestProbabilityIsOne) {
  for (const float factor : {0.3F, 0.18033688F, 1.7e-3F}) {
    const Floats s(static_cast<std::size_t>(kernels_->score_floats));
    for (int key = 0; key < 32; ++key) {
      s[static_cast<std::size_t>(key)] = key == 21 ? 1234.567F : static_cast<float>(key) * 7.3F;
    }
    float max[kMaxBlockRows];
    float sum[kMaxBlockRows] = {};
    float low[kMaxBlockRows] = {};
    alignas(64) float rescale[kMaxBlockRows] = {};
    std::fill_n(max, kMaxBlockRows, -kInf);
    kernels_->softmax({s.data(), 1, 0, 32, max, sum, low, rescale, factor});
    EXPECT_EQ(kernels_->probability(s.data(), 0, 21), 1.0F) << factor;
  }
}

TEST_P(CpuAmxParts, PackingReportsWhatTheProductsWouldNotTake) {
  for (const int dim : {1, 17, 40, 64}) {
    ElementRows x(GetParam(), 64, dim, 5);
    const Floats panels(floats_of(64, dim));
    const auto k = [&] {
      return kernels_->pack_k(x.pointers.data(), 64, dim, GetParam(), nullptr, panels.data());
    };
    const auto v = [&] {
      return kernels_->pack_v(x.pointers.data(), 0, 64, dim, GetParam(), 64, panels.data());
    };
    const auto q = [&] {
      return kernels_->pack_q(x.pointers.data(), 32, 32, dim, GetParam(), nullptr, panels.data());
    };
    for (const int row : {0, 15, 17, 31}) {
      const float before = x.at(row, dim - 1);
      for (const float fine : {0.0F, -0.0F, fp32() ? -0x1p-72F : -0x1p-24F, fp32() ? 0x1p59F : 65504.0F}) {
        x.set(row, dim - 1, fine);
        EXPECT_TRUE(q() && k() && v()) << fine;
      }
      for (const float unfit : {kInf, -kInf, std::nanf("")}) {
        x.set(row, dim - 1, unfit);
        EXPECT_FALSE(q() || k() || v()) << unfit;
      }
      if (fp32()) {
        for (const float unfit : {0x1p-73F, -0x1.8p126F}) {
          x.set(row, dim - 1, unfit);
          EXPECT_FALSE(v()) << unfit;
        }
        for (const float unfit : {0x1p-101F, -0x1p-140F, 0x1.000002p59F, -3.0e38F}) {
          x.set(row, dim - 1, unfit);
          EXPECT_FALSE(q() || k()) << unfit;
        }
      }
      x.set(row, dim - 1, before);
    }
  }
}

TEST_P(CpuAmxParts, TinyAndHugePartsKeepTheBound) {
  struct Variant {
    const char* what;
    float q, k, v, scale;
  };
  const std::vector<Variant> of_fp32 = {{"plain", 1, 1, 1, 0.2F},
                                        {"peaked", 30, 1, 1, 0.2F},
                                        {"negative scale", 1, 1, 1, -0.2F},
                                        {"subnormal queries", 0x1p-128F, 0x1p120F, 1, 0x1p5F},
                                        {"subnormal keys", 0x1p120F, 0x1p-128F, 1, 0x1p5F},
                                        {"queries about 2^-100", 0x1p-100F, 0x1p58F, 1, 0x1p39F},
                                        {"tiny products, large scale", 0x1p-60F, 0x1p-60F, 1, 0x1p118F},
                                        {"large products, small scale", 0x1p58F, 0x1p58F, 1, 0x1p-119F},
                                        {"huge products, small scale", 0x1p61F, 0x1p61F, 1, 0x1p-124F},
                                        {"values about 2^-72", 1, 1, 0x1p-72F, 0.2F},
                                        {"values of 2^-100", 1, 1, 0x1p-100F, 0.2F},
                                        {"values of 2^100", 1, 1, 0x1p100F, 0.2F},
                                        {"values of 2^124", 1, 1, 0x1p124F, 0.2F}};
  const std::vector<Variant> of_fp16 = {{"plain", 1, 1, 1, 0.2F},
                                        {"peaked", 30, 1, 1, 0.2F},
                                        {"subnormal queries", 0x1p-18F, 0x1p10F, 1, 0x1p6F},
                                        {"large keys", 1, 0x1p13F, 1, 0x1p-15F},
                                        {"large values", 1, 1, 0x1p13F, 0.2F},
                                        {"all factors tiny", 0x1p-12F, 0x1p-12F, 1, 0x1p22F}};
  for (const Variant& t : fp32() ? of_fp32 : of_fp16) {
    Problem p = causal_problem(GetParam());
    p.softmax_scale = t.scale;
    DenseCase c(p);
    scale_all(&c.q, p.dtype, t.q);
    scale_all(&c.k, p.dtype, t.k);
    scale_all(&c.v, p.dtype, t.v);
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    expect_within_bound(c, t.what);
  }
}

// Sums of like terms, which round in one direction, against such that do not: two kinds of keys of the same
// logit.
TEST_P(CpuAmxParts, LikeTermsOfManyChannelsKeepTheBound) {
  for (const std::int64_t dim : {192, 320, 512}) {
    Problem p = causal_problem(GetParam());
    p.head_dim_qk = dim;
    p.softmax_scale = 200.0F / static_cast<float>(dim);
    DenseCase c(p);
    const auto fill = [&](std::vector<unsigned char>* x, std::int64_t columns, const auto& value) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(x->size() / size_of(p.dtype)); ++i) {
        core::store_element(x->data(), p.dtype, i, value(i / columns, i % columns));
      }
    };
    fill(&c.q, dim, [](std::int64_t, std::int64_t) { return 0x1.09c5b4p+0F; });
    fill(&c.k, dim, [&](std::int64_t key, std::int64_t d) {
      const float by = key % 2 == 0 ? 0.0F : d < dim / 2 ? 0x1.930be2p-3F : -0x1.930be2p-3F;
      return 0x1.66caccp+0F * (1 + by);
    });
    fill(&c.v, p.head_dim_v, [](std::int64_t key, std::int64_t) { return key % 2 == 0 ? 1.0F : -1.0F; });
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    expect_within_bound(c, "head dim " + std::to_string(dim));
  }
}

// Queries are 1 in their first channel alone, keys 0 until they are set: a key's first channel is its logit.
void set_logits_to_first_channel_of_keys(DenseCase* c) {
  const Problem& p = c->p;
  std::memset(c->q.data(), 0, c->q.size());
  std::memset(c->k.data(), 0, c->k.size());
  for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
    core::store_element(c->q.data(), p.dtype, r * p.head_dim_qk, 1.0F);
  }
}

// One key that weighs 1 and many that weigh 2⁻⁴⁰ to 2⁻¹⁰: what the tile registers flush of the lesser ones'
// products with small values must not add up.
TEST_P(CpuAmxParts, ManySmallWeightsOfSmallValues) {
  for (const int power : {-10, -20, -30, -40}) {
    Problem p = causal_problem(GetParam());
    p.seqlen_q = 9;
    p.seqlen_kv = 20000;
    p.softmax_scale = 1;
    DenseCase c(p);
    set_logits_to_first_channel_of_keys(&c);
    for (std::int64_t j = 1; j < p.seqlen_kv; ++j) {
      core::store_element(c.k.data(), p.dtype, j * p.head_dim_qk, static_cast<float>(power) * 0.693F);
    }
    for (std::int64_t i = 0; i < p.seqlen_kv * p.head_dim_v; ++i) {
      core::store_element(c.v.data(), p.dtype, i,
                          std::ldexp(1.0F + static_cast<float>(i % 97) / 97.0F, fp32() ? -72 : 0));
    }
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    expect_within_bound(c, "weights of 2^" + std::to_string(power));
  }
}

// A mean of equal values is that value.
TEST_P(CpuAmxParts, EqualValuesStayWhatTheyAre) {
  for (const float value : {1.0F, 0.1F, 1.9999F, -1234.567F}) {
    Problem p = causal_problem(GetParam());
    p.want_lse = false;
    DenseCase c(p);
    for (std::int64_t i = 0; i < p.seqlen_kv * p.head_dim_v; ++i) {
      core::store_element(c.v.data(), p.dtype, i, value);
    }
    std::memset(c.k.data(), 0, c.k.size());
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    const float stored = core::load_element(c.v.data(), p.dtype, 0);
    for (std::int64_t i = 0; i < p.seqlen_q * p.heads_q * p.head_dim_v; ++i) {
      ASSERT_NEAR(core::load_element(c.o.data(), p.dtype, i), stored,
                  std::abs(stored) * (fp32() ? 0x1p-22 : 0x1p-11));
    }
  }
}

// Rule 7: infinities in queries and keys are what they are, and no 0 · ∞ of a part makes NaN of them.
TEST_P(CpuAmxParts, InfinitiesOfQueriesAndKeys) {
  const Problem p = causal_problem(GetParam());
  DenseCase c(p);
  for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
    core::store_element(c.k.data(), p.dtype, 3 * p.head_dim_qk + d, d == 5 ? -kInf : 1.0F);
  }
  for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
    core::store_element(c.q.data(), p.dtype, r * p.head_dim_qk + 5, 1.5F);
  }
  ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
  // Key 3's logit is −∞ for every row: weight 0, no NaN.
  for (const float lse : c.lse) {
    ASSERT_TRUE(std::isfinite(lse));
  }
  expect_within_bound(c, "a key of -inf");
}

// … and those of values: a key of the least weight makes its column infinite.
TEST_P(CpuAmxParts, AnInfiniteValueOfALittleWeight) {
  for (const float logit_log2 : {0.0F, -20.0F, -99.5F, -101.0F, -110.0F, -125.5F}) {
    Problem p = causal_problem(GetParam());
    p.softmax_scale = 1;
    DenseCase c(p);
    set_logits_to_first_channel_of_keys(&c);
    core::store_element(c.k.data(), p.dtype, 3 * p.head_dim_qk, logit_log2 * 0.6931F);
    core::store_element(c.v.data(), p.dtype, 3 * p.head_dim_v + 7, -kInf);
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
      ASSERT_EQ(core::load_element(c.o.data(), p.dtype, r * p.head_dim_v + 7), -kInf) << logit_log2;
      ASSERT_TRUE(std::isfinite(core::load_element(c.o.data(), p.dtype, r * p.head_dim_v + 6))) << logit_log2;
    }
  }
}

}  // namespace
}  // namespace attn::cpu
