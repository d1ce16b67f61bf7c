// The level amx in fp32 and fp16, whose elements go through the tile registers as sums of bf16 numbers: the
// kernels against plain loops in float64, what they must not take, and whole problems at the edges of that.
// Skipped where the CPU or the system has no AMX.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/amx.hpp"
#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class CpuAmxParts : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const KernelTable* level = kernels_of("amx");
    if (level == nullptr) {
      GTEST_SKIP() << "no AMX-BF16 here, or the system does not grant it";
    }
    kernels_ = level->tiles_of[static_cast<std::size_t>(GetParam())];
    ASSERT_NE(kernels_, nullptr);
    ASSERT_EQ(kernels_->tile_parts, fp32() ? 3 : 2);
  }
  [[nodiscard]] static bool fp32() { return GetParam() == DType::kFloat32; }
  // u of the contract's rule 13.
  [[nodiscard]] static double unit() { return fp32() ? 0x1p-22 : 0x1p-12; }
  [[nodiscard]] std::size_t floats_of(int rows, int dim) const {
    return static_cast<std::size_t>(rows) *
           static_cast<std::size_t>((dim + kAmxStep - 1) / kAmxStep * kAmxStep) *
           static_cast<std::size_t>(kernels_->tile_parts) / 2;
  }
  const KernelTable* kernels_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Types, CpuAmxParts, testing::Values(DType::kFloat32, DType::kFloat16),
                         [](const auto& type) { return std::string(to_string(type.param)); });

// Rows each of whose memory ends where the row ends.
struct Rows {
  Rows(DType type, int count, int dim, std::uint32_t seed) : dtype(type) {
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

TEST_P(CpuAmxParts, ScoresAgreeWithPlainLoops) {
  const int keys = 96;
  for (const int dim : {1, 2, 15, 16, 17, 31, 32, 33, 56, 64, 80, 128, 192, 512}) {
    Rows k(GetParam(), keys, dim, 1);
    k.set(40, dim - 1, 0x1.fffffep-3F);  // all bits of every part
    const Floats panels(floats_of(keys, dim));
    ASSERT_TRUE(kernels_->pack_k(k.pointers.data(), keys, dim, GetParam(), nullptr, panels.data()));
    for (const int count : {1, 15, 16, 17, 32}) {
      const int rows = (count + 15) / 16 * 16;
      const Rows q(GetParam(), count, dim, 2);
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
TEST_P(CpuAmxParts, SoftmaxAndAccumulationAgreeWithPlainLoops) {
  const int tile = 256;
  const int begin = 32;
  const float factor = 0.5F;
  for (const int end : {64, 128, 160, 256}) {
    for (const int dim : {1, 15, 16, 17, 32, 48, 64, 80, 128, 512}) {
      const Rows v(GetParam(), tile, dim, 3);
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
            // Three parts hold all of a float; two hold 16 bits.
            ASSERT_NEAR(kernels_->probability(s.data(), r, begin + j), p, (fp32() ? 1e-6 : 0x1.2p-16) * p);
          }
          ASSERT_NEAR(rescale[r], shrink, 1e-6 * shrink);
          ASSERT_NEAR(sum[r] + low[r], total, (fp32() ? 1e-6 : 1e-5) * total);
          for (int c = 0; c < dim; ++c) {
            double exact = 3 * shrink;
            double size = exact;
            for (int j = 0; j < end - begin; ++j) {
              const double p = std::exp2(factor * x[j] - top);
              exact += p * v.at(begin + j, c);
              size += p * std::abs(v.at(begin + j, c));
            }
            const auto at = static_cast<std::size_t>(r * stride + c);
            ASSERT_NEAR(o[at] + o_low[at], exact, (fp32() ? 0x1p-20 : 0x1p-15) * size)
                << "dim " << dim << " rows " << count << " column " << c;
          }
        }
      }
    }
  }
}

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
    Rows x(GetParam(), 64, dim, 5);
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

Problem causal_problem(DType dtype) {
  Problem p;
  p.dtype = dtype;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = 70;
  p.seqlen_kv = 300;
  p.head_dim_qk = 40;
  p.head_dim_v = 24;
  p.causal = true;
  p.alignment = Alignment::kBottomRight;
  p.want_lse = true;
  return p;
}

// O and LSE of every row within the contract's bound (rule 13), from the elements as they are stored.
void expect_within_bound(const DenseCase& c, double unit, const std::string& what) {
  const Problem& p = c.p;
  const auto q_at = [&](std::int64_t i, std::int64_t h, std::int64_t d) {
    return core::load_element(c.q.data(), p.dtype, (i * p.heads_q + h) * p.head_dim_qk + d);
  };
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
      const std::int64_t seen = i + 1 + p.seqlen_kv - p.seqlen_q;
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
        ASSERT_NEAR(got, o, (4 * unit + 2 * epsilon) * largest + 0x1p-149) << what << " row " << i;
      }
    }
  }
}

void scale_all(std::vector<unsigned char>* x, DType dtype, float by) {
  const auto count = static_cast<std::int64_t>(x->size() / size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    core::store_element(x->data(), dtype, i, core::load_element(x->data(), dtype, i) * by);
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
    expect_within_bound(c, unit(), t.what);
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
    expect_within_bound(c, unit(), "head dim " + std::to_string(dim));
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
    std::memset(c.q.data(), 0, c.q.size());
    std::memset(c.k.data(), 0, c.k.size());
    for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
      core::store_element(c.q.data(), p.dtype, r * p.head_dim_qk, 1.0F);
    }
    for (std::int64_t j = 1; j < p.seqlen_kv; ++j) {
      core::store_element(c.k.data(), p.dtype, j * p.head_dim_qk, static_cast<float>(power) * 0.693F);
    }
    for (std::int64_t i = 0; i < p.seqlen_kv * p.head_dim_v; ++i) {
      core::store_element(c.v.data(), p.dtype, i,
                          std::ldexp(1.0F + static_cast<float>(i % 97) / 97.0F, fp32() ? -72 : 0));
    }
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    expect_within_bound(c, unit(), "weights of 2^" + std::to_string(power));
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

// Rule 6: whatever stands in a key that a row does not see changes no bit of it, also where it takes the
// exact way; and bits do not depend on which rows share a task.
TEST_P(CpuAmxParts, UnseenKeysHaveNoInfluence) {
  const Problem p = causal_problem(GetParam());
  DenseCase plain(p);
  ASSERT_TRUE(plain.run(cpu_options("amx", 1)).ok());
  for (const float x : {0x1p-130F, 0x1p-80F, 3.0e38F, 0x1p60F, kInf, -kInf, std::nanf("")}) {
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
  expect_within_bound(c, unit(), "a key of -inf");
}

// … and those of values: a key of the least weight makes its column infinite.
TEST_P(CpuAmxParts, AnInfiniteValueOfALittleWeight) {
  for (const float logit_log2 : {0.0F, -20.0F, -99.5F, -101.0F, -110.0F, -125.5F}) {
    Problem p = causal_problem(GetParam());
    p.softmax_scale = 1;
    DenseCase c(p);
    std::memset(c.q.data(), 0, c.q.size());
    std::memset(c.k.data(), 0, c.k.size());
    for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
      core::store_element(c.q.data(), p.dtype, r * p.head_dim_qk, 1.0F);
    }
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
