// The level amx: its bf16 kernels against plain loops, and whole bf16 problems with what tile products take
// for something else: subnormal queries and keys, tiny values, huge ones, a large scale, and all of these in
// keys that rows do not see. Skipped where the CPU or the system has no AMX.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/amx.hpp"
#include "cpu_test_util.hpp"

namespace attn::cpu {
namespace {

constexpr DType kBf16 = DType::kBFloat16;

class CpuAmx : public testing::Test {
 protected:
  void SetUp() override {
    const KernelTable* level = kernels_of("amx");
    if (level == nullptr) {
      GTEST_SKIP() << "no AMX-BF16 here, or the system does not grant it";
    }
    kernels_ = level->tiles_of[static_cast<std::size_t>(kBf16)];
    ASSERT_NE(kernels_, nullptr);
  }
  const KernelTable* kernels_ = nullptr;
};

struct Bf16Rows {
  Bf16Rows(int count, int dim, std::uint32_t seed) : dim_(dim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < count; ++i) {
      bytes.emplace_back(static_cast<std::size_t>(dim) * 2);  // each row ends where its memory ends
      for (int c = 0; c < dim; ++c) {
        core::store_element(bytes.back().data(), kBf16, c, normal(random));
      }
    }
    for (const auto& row : bytes) {
      pointers.push_back(row.data());
    }
  }
  [[nodiscard]] float at(int row, int c) const {
    return core::load_element(bytes[static_cast<std::size_t>(row)].data(), kBf16, c);
  }
  void set(int row, int c, float v) {
    core::store_element(bytes[static_cast<std::size_t>(row)].data(), kBf16, c, v);
  }
  int dim_;
  std::vector<std::vector<unsigned char>> bytes;
  std::vector<const void*> pointers;
};

std::size_t padded(int n) {
  return static_cast<std::size_t>((n + kAmxStep - 1) / kAmxStep * kAmxStep);
}

TEST_F(CpuAmx, ScoresAgreeWithPlainLoops) {
  const int keys = 96;
  for (const int dim : {1, 2, 31, 32, 33, 56, 64, 80, 128, 192, 512}) {
    const Bf16Rows k(keys, dim, 1);
    const Floats panels(keys * padded(dim) / 2);
    ASSERT_TRUE(kernels_->pack_k(k.pointers.data(), keys, dim, kBf16, nullptr, panels.data()));
    for (const int count : {1, 15, 16, 17, 32}) {
      const int rows = (count + 15) / 16 * 16;
      const Bf16Rows q(count, dim, 2);
      const Floats packed(static_cast<std::size_t>(rows) * padded(dim) / 2);
      ASSERT_TRUE(kernels_->pack_q(q.pointers.data(), count, rows, dim, kBf16, nullptr, packed.data()));
      const Floats s(kMaxBlockRows * kScoreStride);
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
            exact += -0.25 * q.at(r, c) * k.at(key, c);
            size += 0.25 * std::abs(q.at(r, c) * k.at(key, c));
          }
          ASSERT_NEAR(s[static_cast<std::size_t>(r * kScoreStride + key)], exact, 0x1p-22 * size)
              << "dim " << dim << " rows " << count;
        }
      }
    }
  }
}

// Softmax, then O ← rescale · O + P·V, over keys 32 … 95 of a tile of 128.
TEST_F(CpuAmx, SoftmaxAndAccumulationAgreeWithPlainLoops) {
  const int tile = 128;
  const int begin = 32;
  const int end = 96;
  const float factor = 0.5F;
  for (const int dim : {1, 15, 16, 17, 32, 48, 64, 80, 128, 512}) {
    const Bf16Rows v(tile, dim, 3);
    const Floats panels(tile * padded(dim) / 2);
    ASSERT_TRUE(kernels_->pack_v(v.pointers.data(), begin, end, dim, kBf16, tile, panels.data()));
    for (const int count : {1, 16, 29, 32}) {
      const int rows = (count + 15) / 16 * 16;
      const int stride = (dim + 15) / 16 * 16;
      std::mt19937 random(4);
      std::normal_distribution<float> normal;
      const Floats s(kMaxBlockRows * kScoreStride);
      std::fill_n(s.data(), kMaxBlockRows * kScoreStride, 0.0F);
      std::vector<double> scores;
      for (int r = 0; r < count; ++r) {
        for (int key = begin; key < end; ++key) {
          const float x = key % 7 == r % 7 ? -INFINITY : 8 * normal(random);
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
      std::fill_n(o.data(), rows * stride, 3.0F);
      kernels_->softmax({s.data(), count, begin, end, max, sum, low, rescale, factor});
      kernels_->enter();
      kernels_->accumulate({s.data(), rows, begin, end, rescale, o.data(), nullptr, stride}, panels.data(),
                           tile, dim);
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
          total += std::exp2(factor * x[j] - top);
        }
        ASSERT_NEAR(rescale[r], shrink, 1e-6 * shrink);
        ASSERT_NEAR(sum[r], total, 1e-5 * total);
        for (int c = 0; c < dim; ++c) {
          double exact = 3 * shrink;
          double size = exact;
          for (int j = 0; j < end - begin; ++j) {
            const double p = std::exp2(factor * x[j] - top);
            exact += p * v.at(begin + j, c);
            size += p * std::abs(v.at(begin + j, c));
          }
          // P rounded to bf16, whose unit is 2⁻⁷.
          ASSERT_NEAR(o[static_cast<std::size_t>(r * stride + c)], exact, 0x1.1p-8 * size)
              << "dim " << dim << " rows " << count << " column " << c;
        }
      }
    }
  }
}

TEST_F(CpuAmx, PackingReportsWhatTheProductsWouldNotTake) {
  for (const int dim : {1, 40, 64}) {
    Bf16Rows x(32, dim, 5);
    const Floats panels(32 * padded(dim));
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

Problem causal_bf16(std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  Problem p;
  p.dtype = kBf16;
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

void scale_rows(std::vector<unsigned char>* x, std::int64_t first, std::int64_t count, float by) {
  for (std::int64_t i = first; i < first + count; ++i) {
    core::store_element(x->data(), kBf16, i, core::load_element(x->data(), kBf16, i) * by);
  }
}

// O and LSE of every row within the contract's bound (rule 13, u = 2⁻⁹).
void expect_within_bound(const DenseCase& c, const char* what) {
  const Problem& p = c.p;
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
          const double product = static_cast<double>(core::load_element(
                                     c.q.data(), kBf16, (i * p.heads_q + h) * p.head_dim_qk + d)) *
                                 core::load_element(c.k.data(), kBf16, j * p.head_dim_qk + d);
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
          const double v = core::load_element(c.v.data(), kBf16, j * p.head_dim_v + d);
          o += s[static_cast<std::size_t>(j)] / sum * v;
          largest = std::max(largest, std::abs(v));
        }
        const double got = core::load_element(c.o.data(), kBf16, (i * p.heads_q + h) * p.head_dim_v + d);
        ASSERT_NEAR(got, o, (4 * 0x1p-9 + 2 * epsilon) * largest + 0x1p-133) << what << " row " << i;
      }
    }
  }
}

// Whole problems whose parts are far from 1: powers of two that make them subnormal, and the other factor
// that brings logits back to ordinary size.
TEST_F(CpuAmx, TinyAndHugePartsKeepTheBound) {
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
    Problem p = causal_bf16(70, 300);
    p.softmax_scale = t.scale;
    DenseCase c(p);
    scale_rows(&c.q, 0, p.seqlen_q * p.heads_q * p.head_dim_qk, t.q);
    scale_rows(&c.k, 0, p.seqlen_kv * p.head_dim_qk, t.k);
    scale_rows(&c.v, 0, p.seqlen_kv * p.head_dim_v, t.v);
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    expect_within_bound(c, t.what);
  }
}

// Rule 6: whatever stands in a key that a row does not see changes no bit of it, also where it takes the
// exact way.
TEST_F(CpuAmx, UnseenKeysHaveNoInfluence) {
  const Problem p = causal_bf16(70, 300);
  DenseCase plain(p);
  ASSERT_TRUE(plain.run(cpu_options("amx", 1)).ok());
  for (const float x : {0x1p-130F, 0x1p-110F, 3.0e38F, INFINITY, NAN}) {
    DenseCase c(p);
    const std::int64_t key = 262;  // seen by queries from 32 on
    for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
      core::store_element(c.k.data(), kBf16, key * p.head_dim_qk + d, x);
    }
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      core::store_element(c.v.data(), kBf16, key * p.head_dim_v + d, x);
    }
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    const std::size_t unseen = static_cast<std::size_t>(32 * p.heads_q * p.head_dim_v) * 2;
    EXPECT_EQ(std::memcmp(c.o.data(), plain.o.data(), unseen), 0) << x;
    EXPECT_NE(std::memcmp(c.o.data(), plain.o.data(), c.o.size()), 0) << x;
    // … and bits do not depend on which rows share a task.
    DenseCase two(p);
    two.k = c.k;
    two.v = c.v;
    two.t.k.data = two.k.data();
    two.t.v.data = two.v.data();
    ASSERT_TRUE(two.run(cpu_options("amx", 2)).ok());
    EXPECT_EQ(two.o, c.o) << x;
  }
}

// Rule 7: a subnormal query element times an infinite key is infinite, not NaN.
TEST_F(CpuAmx, SubnormalTimesInfinityIsInfinite) {
  const Problem p = causal_bf16(40, 40);
  DenseCase c(p);
  for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
    core::store_element(c.k.data(), kBf16, 3 * p.head_dim_qk + d, d == 5 ? -INFINITY : 1.0F);
  }
  core::store_element(c.q.data(), kBf16, 39 * p.heads_q * p.head_dim_qk + 5, 0x1p-130F);
  ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
  // Key 3's logit is −∞ for that row: weight 0, no NaN.
  EXPECT_TRUE(std::isfinite(c.lse[39]));
}

TEST_F(CpuAmx, ExplainNamesTheTileProducts) {
  Problem p = causal_bf16(100, 100);
  Plan plan;
  ASSERT_TRUE(make_plan(p, cpu_options("amx"), &plan).ok());
  EXPECT_NE(plan.explain().find("tile products: AMX"), std::string::npos) << plan.explain();
  p.softmax_scale = 0x1p100F;
  ASSERT_TRUE(make_plan(p, cpu_options("amx"), &plan).ok());
  EXPECT_NE(plan.explain().find("tile products: fp32"), std::string::npos) << plan.explain();
}

}  // namespace
}  // namespace attn::cpu
