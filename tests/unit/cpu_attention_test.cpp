// Whole problems on every level against the float64 judge: a seeded walk over options, and the rules that a
// tile can break: poison, empty rows, splits, batch-invariance, long sums, large biases. The wide suite is
// tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cpu_test_util.hpp"
#include "reference/reference.hpp"

namespace attn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CpuAttention : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] PlanOptions options(int threads = 1) const { return cpu_options(GetParam(), threads); }
};

// Rule 13 on every row of a dense case.
void expect_close(const DenseCase& c) {
  std::vector<double> o(static_cast<std::size_t>(c.p.head_dim_v));
  for (std::int64_t b = 0; b < c.p.batch; ++b) {
    for (std::int64_t h = 0; h < c.p.heads_q; ++h) {
      for (std::int64_t i = 0; i < c.p.seqlen_q; ++i) {
        const reference::Row row = reference::forward_row(c.p, c.t, b, h, i, o.data());
        const double epsilon = 0x1p-22 * row.logit_error;
        const std::int64_t at = ((b * c.p.seqlen_q + i) * c.p.heads_q + h) * c.p.head_dim_v;
        for (std::int64_t x = 0; x < c.p.head_dim_v; ++x) {
          const float got = core::load_element(c.o.data(), c.p.dtype, at + x);
          ASSERT_NEAR(got, o[static_cast<std::size_t>(x)],
                      (4 * unit(c.p.dtype) + 2 * epsilon) * row.max_abs_v)
              << to_string(c.p) << " b " << b << " h " << h << " i " << i << " channel " << x;
        }
        if (c.p.want_lse) {
          const float lse = c.lse[static_cast<std::size_t>((b * c.p.heads_q + h) * c.p.seqlen_q + i)];
          if (std::isinf(row.lse)) {
            ASSERT_EQ(lse, row.lse);
          } else {
            ASSERT_NEAR(lse, row.lse, 1e-3 + 2e-6 * std::abs(row.lse) + epsilon) << to_string(c.p);
          }
        }
      }
    }
  }
}

TEST_P(CpuAttention, SeededProblemsAgreeWithTheReference) {
  std::mt19937 random(20240);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<float> sinks(16);
  std::vector<float> slopes(16);
  for (int n = 0; n < 60; ++n) {
    Problem p;
    p.dtype = static_cast<DType>(n % 3);
    p.batch = pick(1, 2);
    p.heads_kv = pick(1, 3);
    p.heads_q = p.heads_kv * pick(1, 5);
    p.seqlen_q = pick(0, 3) == 0 ? pick(1, 3) : pick(1, 60);
    p.seqlen_kv = pick(0, 4) == 0 ? pick(257, 600) : pick(0, 90);
    p.head_dim_qk = pick(1, 70);
    p.head_dim_v = pick(1, 70);
    p.alignment = pick(0, 1) == 0 ? Alignment::kTopLeft : Alignment::kBottomRight;
    p.causal = pick(0, 1) == 0;
    p.window_left = pick(0, 2) == 0 ? pick(0, 80) : -1;
    p.window_right = pick(0, 2) == 0 ? pick(0, 80) : -1;
    p.softcap = pick(0, 2) == 0 ? 2.5F : 0.0F;
    p.softmax_scale = pick(0, 3) == 0 ? std::optional<float>(-0.3F) : std::nullopt;
    p.sinks = pick(0, 2) == 0;
    p.lse_with_sink = pick(0, 1) == 0;
    p.alibi = pick(0, 2) == 0;
    p.num_splits = pick(0, 2) == 0 ? pick(2, 5) : 0;
    p.batch_invariant = pick(0, 3) == 0;
    p.want_lse = pick(0, 3) != 0;
    for (std::size_t h = 0; h < sinks.size(); ++h) {
      sinks[h] = static_cast<float>(pick(-30, 30)) * 0.1F;
      slopes[h] = static_cast<float>(pick(-10, 10)) * 0.05F;
    }
    DenseCase c(p, static_cast<std::uint32_t>(n));
    c.t.sinks = p.sinks ? sinks.data() : nullptr;
    c.t.alibi_slopes = p.alibi ? slopes.data() : nullptr;
    const Status status = c.run(options());
    ASSERT_TRUE(status.ok()) << status.message();
    expect_close(c);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// Rule 6, to the bit and on both paths: what stands in keys that a row does not see changes nothing in it,
// though other rows of its tile see them. Rule 7: the rows that do see them get what arithmetic gives.
TEST_P(CpuAttention, PoisonReachesOnlyTheRowsThatSeeIt) {
  for (const std::int64_t seqlen_q : {2, 40}) {
    const Problem p = causal_problem(seqlen_q, 50);
    for (const float poison : {kNan, kInfinity, -kInfinity}) {
      for (const bool in_v : {false, true}) {
        DenseCase clean(p);
        DenseCase dirty(p);
        ASSERT_TRUE(clean.run(options()).ok());
        const std::int64_t key = 49;  // only the last query sees it
        if (in_v) {
          core::store_element(dirty.v.data(), p.dtype, key * p.head_dim_v + 7, poison);
        } else {
          core::store_element(dirty.k.data(), p.dtype, key * p.head_dim_qk + 7, poison);
        }
        ASSERT_TRUE(dirty.run(options()).ok());
        const std::size_t row_bytes = static_cast<std::size_t>(p.heads_q * p.head_dim_v) * sizeof(float);
        const std::size_t others = static_cast<std::size_t>(seqlen_q - 1) * row_bytes;
        EXPECT_EQ(std::memcmp(clean.o.data(), dirty.o.data(), others), 0) << in_v << " " << poison;
        for (std::int64_t h = 0; h < p.heads_q; ++h) {
          for (std::int64_t x = 0; x < p.head_dim_v; ++x) {
            const std::int64_t at = ((seqlen_q - 1) * p.heads_q + h) * p.head_dim_v + x;
            const float got = core::load_element(dirty.o.data(), p.dtype, at);
            if (in_v && x == 7) {
              EXPECT_TRUE(std::isnan(poison) ? std::isnan(got) : got == poison) << got;
            } else if (in_v) {
              EXPECT_EQ(got, core::load_element(clean.o.data(), p.dtype, at));
            } else if (std::isnan(poison)) {
              EXPECT_TRUE(std::isnan(got));
            }
          }
        }
      }
    }
  }
}

TEST_P(CpuAttention, RowsThatSeeNothing) {
  for (const std::int64_t splits : {1, 3}) {
    Problem p = causal_problem(30, 9);  // bottom-right: the first 21 queries see nothing
    p.num_splits = splits;
    DenseCase c(p);
    ASSERT_TRUE(c.run(options()).ok());
    expect_close(c);
    for (std::int64_t n = 0; n < 21 * p.heads_q * p.head_dim_v; ++n) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(core::load_element(c.o.data(), p.dtype, n)), 0U);
    }
    EXPECT_EQ(c.lse[20], -kInfinity);
    EXPECT_TRUE(std::isfinite(c.lse[21]));
  }
  Problem none = causal_problem(3, 0);
  none.sinks = true;
  const float sinks[] = {0.5F, -kInfinity};
  DenseCase c(none);
  c.t.sinks = sinks;
  ASSERT_TRUE(c.run(options()).ok());
  EXPECT_EQ(c.lse[0], 0.5F);
  EXPECT_EQ(c.lse[3], -kInfinity);
  EXPECT_EQ(core::load_element(c.o.data(), none.dtype, 0), 0.0F);
}

// Logits of −inf by data: an empty row where there is nothing else, neutral where there is.
TEST_P(CpuAttention, MinusInfinityByData) {
  for (const std::int64_t seqlen_q : {1, 12}) {
    Problem p = causal_problem(seqlen_q, 300);
    p.causal = false;
    DenseCase c(p);
    for (std::int64_t i = 0; i < seqlen_q * p.heads_q * p.head_dim_qk; ++i) {
      core::store_element(c.q.data(), p.dtype, i, i % p.head_dim_qk == 0 ? 1.0F : 0.0F);
    }
    for (std::int64_t j = 0; j < 280; ++j) {  // the whole first tile and more
      core::store_element(c.k.data(), p.dtype, j * p.head_dim_qk, -kInfinity);
    }
    ASSERT_TRUE(c.run(options()).ok());
    expect_close(c);
    for (std::int64_t j = 280; j < 300; ++j) {
      core::store_element(c.k.data(), p.dtype, j * p.head_dim_qk, -kInfinity);
    }
    ASSERT_TRUE(c.run(options()).ok());
    EXPECT_EQ(c.lse[0], -kInfinity);
    EXPECT_EQ(core::load_element(c.o.data(), p.dtype, 3), 0.0F);
  }
}

TEST_P(CpuAttention, SplitsAgreeAndSurplusOnesAreNeutral) {
  for (const std::int64_t seqlen_q : {1, 33}) {
    Problem p = causal_problem(seqlen_q, 1300);
    for (const std::int64_t splits : {1, 2, 5, 64, 1024}) {
      p.num_splits = splits;
      DenseCase c(p);
      ASSERT_TRUE(c.run(options()).ok());
      expect_close(c);
    }
  }
}

// The mean of equal values is that value: sums over 40000 keys must not drift (plain fp32 sums are off by
// some 1e-5 here), nor must dot products of like terms.
TEST_P(CpuAttention, LongSumsOfLikeTermsDoNotDrift) {
  for (const std::int64_t seqlen_q : {1, 6}) {
    Problem p = causal_problem(seqlen_q, 40000);
    p.causal = false;
    p.heads_q = 1;
    p.num_splits = 1;
    DenseCase c(p);
    for (std::int64_t i = 0; i < seqlen_q * p.head_dim_qk; ++i) {
      core::store_element(c.q.data(), p.dtype, i, 0.0F);
    }
    for (std::int64_t n = 0; n < p.seqlen_kv * p.head_dim_v; ++n) {
      core::store_element(c.v.data(), p.dtype, n, 0.1F + 0.037F * static_cast<float>(n % p.head_dim_v));
    }
    ASSERT_TRUE(c.run(options()).ok());
    for (std::int64_t x = 0; x < p.head_dim_v; ++x) {
      const float v = core::load_element(c.v.data(), p.dtype, x);
      EXPECT_NEAR(core::load_element(c.o.data(), p.dtype, x), v, 0x1p-20 * v);
    }
    EXPECT_NEAR(c.lse[0], std::log(40000.0), 2e-6);
  }
}

// A key of like terms, which differ in size by an eighth at most and lie in an order of their own.
std::vector<float> like_terms(std::mt19937* random, std::int64_t dim) {
  const auto uniform = [&] { return static_cast<float>((*random)() % 8388608) / 8388608.0F; };
  const float size = 1.4F * (1 + 0.004F * uniform());
  const float by = (*random)() % 2 == 0 ? 0.0F : 0.3F * uniform();
  const auto order = (*random)() % 3;
  std::vector<float> key(static_cast<std::size_t>(dim));
  for (std::int64_t d = 0; d < dim; ++d) {
    const bool first = order == 0 ? d < dim / 2 : order == 1 ? d % 2 == 1 : d % 32 < 16;
    key[static_cast<std::size_t>(d)] = size * (first ? 1 + by : 1 - by);
  }
  return key;
}

// Dot products of like terms, all of whose additions may round in one direction: of 64 keys of about the same
// logit the two whose scores (LSE of one key) are most too high and too low, with values 1 and −1. In tiles
// and for a few rows.
TEST_P(CpuAttention, LikeTermsOfManyChannelsKeepTheBound) {
  constexpr std::int64_t kKeys = 64;
  std::mt19937 random(7);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const std::int64_t seqlen_q : {1, 40}) {
      for (const std::int64_t dim : {32, 64, 128, 192, 256, 320, 512}) {
        for (int round = 0; round < 4; ++round) {
          const float query = 1 + static_cast<float>(random() % 1000) / 1000.0F;
          std::vector<std::vector<float>> keys;
          for (std::int64_t n = 0; n < kKeys; ++n) {
            keys.push_back(like_terms(&random, dim));
          }
          Problem p = causal_problem(seqlen_q, 1);
          p.dtype = dtype;
          p.head_dim_qk = dim;
          p.causal = false;
          p.softmax_scale = 1;
          p.batch = kKeys;
          p.heads_q = 1;
          DenseCase each(p);
          const auto fill_queries = [&](DenseCase* c) {
            for (std::int64_t i = 0; i < static_cast<std::int64_t>(c->q.size() / size_of(dtype)); ++i) {
              core::store_element(c->q.data(), dtype, i, query);
            }
          };
          const auto set_key = [&](DenseCase* c, std::int64_t at, const std::vector<float>& key) {
            for (std::int64_t d = 0; d < dim; ++d) {
              core::store_element(c->k.data(), dtype, at * dim + d, key[static_cast<std::size_t>(d)]);
            }
          };
          fill_queries(&each);
          for (std::int64_t n = 0; n < kKeys; ++n) {
            set_key(&each, n, keys[static_cast<std::size_t>(n)]);
          }
          ASSERT_TRUE(each.run(options()).ok());
          std::vector<double> drift;
          for (std::int64_t n = 0; n < kKeys; ++n) {
            double exact = 0;
            for (std::int64_t d = 0; d < dim; ++d) {
              exact += static_cast<double>(core::load_element(each.q.data(), dtype, 0)) *
                       core::load_element(each.k.data(), dtype, n * dim + d);
            }
            drift.push_back(each.lse[static_cast<std::size_t>(n * seqlen_q)] / exact - 1);
          }
          p.batch = 1;
          p.seqlen_kv = 2;
          p.softmax_scale = (dtype == DType::kFloat32 ? 200.0F : 4000.0F) / static_cast<float>(dim);
          DenseCase two(p);
          fill_queries(&two);
          const auto [low, high] = std::minmax_element(drift.begin(), drift.end());
          set_key(&two, 0, keys[static_cast<std::size_t>(high - drift.begin())]);
          set_key(&two, 1, keys[static_cast<std::size_t>(low - drift.begin())]);
          for (std::int64_t x = 0; x < p.head_dim_v; ++x) {
            core::store_element(two.v.data(), dtype, x, 1.0F);
            core::store_element(two.v.data(), dtype, p.head_dim_v + x, -1.0F);
          }
          ASSERT_TRUE(two.run(options()).ok());
          expect_close(two);
        }
      }
    }
  }
}

// With biases of many hundreds the rounding of slope · distance must not reach the probabilities.
TEST_P(CpuAttention, LargeAlibiBiasesKeepTheirPrecision) {
  for (const float slope : {0.7F, -0.7F}) {
    Problem p = causal_problem(20, 3000);
    p.causal = false;
    p.alibi = true;
    DenseCase c(p);
    const float slopes[] = {slope, slope * 1.37F};
    c.t.alibi_slopes = slopes;
    ASSERT_TRUE(c.run(options()).ok());
    std::vector<double> o(static_cast<std::size_t>(p.head_dim_v));
    for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < 2; ++h) {
        const reference::Row row = reference::forward_row(p, c.t, 0, h, i, o.data());
        for (std::int64_t x = 0; x < p.head_dim_v; ++x) {
          // 2e-6: ten times below what a bias of 2000 rounded to fp32 (6e-5) would leave.
          ASSERT_NEAR(core::load_element(c.o.data(), p.dtype, (i * 2 + h) * p.head_dim_v + x),
                      o[static_cast<std::size_t>(x)], 2e-6 * row.max_abs_v);
        }
      }
    }
  }
}

// A sequence alone and among others, in a longer buffer: the same bits (rule 11). Decode rows with splits,
// and prefill rows.
TEST_P(CpuAttention, BatchInvariant) {
  for (const std::int64_t seqlen_q : {1, 50}) {
    Problem p = causal_problem(seqlen_q, 5000);
    p.batch = 3;
    p.batch_invariant = true;
    p.seqused_kv = true;
    DenseCase batch(p);
    const std::int32_t used[] = {900, 4321, 5000};
    batch.t.seqused_kv = used;
    ASSERT_TRUE(batch.run(options()).ok());
    for (std::int64_t b = 0; b < 3; ++b) {
      Problem alone = p;
      alone.batch = 1;
      alone.seqlen_kv = used[b];
      DenseCase c(alone);
      c.t.seqused_kv = used + b;
      const std::int64_t q_row = seqlen_q * p.heads_q * p.head_dim_qk;
      c.t.q =
          TensorView::bshd(batch.q.data() + b * q_row * 4, p.dtype, 1, seqlen_q, p.heads_q, p.head_dim_qk);
      c.t.k = TensorView::bshd(batch.k.data() + b * p.seqlen_kv * p.head_dim_qk * 4, p.dtype, 1, used[b], 1,
                               p.head_dim_qk);
      c.t.v = TensorView::bshd(batch.v.data() + b * p.seqlen_kv * p.head_dim_v * 4, p.dtype, 1, used[b], 1,
                               p.head_dim_v);
      ASSERT_TRUE(c.run(options()).ok());
      const std::size_t bytes = c.o.size();
      EXPECT_EQ(std::memcmp(c.o.data(), batch.o.data() + static_cast<std::size_t>(b) * bytes, bytes), 0) << b;
      EXPECT_EQ(std::memcmp(c.lse.data(), batch.lse.data() + static_cast<std::size_t>(b) * c.lse.size(),
                            c.lse.size() * sizeof(float)),
                0);
    }
  }
}

// Paged cache with shuffled pages, new keys, rotation: the cache afterwards and the results are the
// reference's.
TEST_P(CpuAttention, AppendToPagesWithRotation) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const RotaryStyle style : {RotaryStyle::kHalfSplit, RotaryStyle::kInterleaved}) {
      Problem p = causal_problem(5, 60);
      p.dtype = dtype;
      p.batch = 2;
      p.page_size = 7;
      p.num_pages = 20;
      p.seqused_kv = true;
      p.seqlen_new = 5;
      p.rotary_dim = 10;
      p.rotary_style = style;
      DenseCase c(p);
      DenseCase pool(p, 9);
      Problem rows = p;
      rows.batch = p.num_pages;
      rows.seqlen_kv = p.page_size;
      DenseCase got(rows, 11);
      DenseCase want(rows, 11);
      std::vector<std::int32_t> table;
      for (std::int32_t e = 0; e < 18; ++e) {
        table.push_back((e * 7 + 3) % 20);
      }
      const std::int32_t used[] = {31, 55};
      std::vector<float> cos;
      std::vector<float> sin;
      for (int position = 0; position < 64; ++position) {
        for (int n = 0; n < 5; ++n) {
          cos.push_back(std::cos(0.37F * static_cast<float>(position * (n + 1))));
          sin.push_back(std::sin(0.37F * static_cast<float>(position * (n + 1))));
        }
      }
      const auto bind = [&](DenseCase& cache) {
        c.t.k = cache.t.k;
        c.t.v = cache.t.v;
        c.t.page_table = table.data();
        c.t.page_table_stride = 9;
        c.t.seqused_kv = used;
        c.t.k_new = TensorView::bshd(pool.k.data(), dtype, 2, 5, 1, p.head_dim_qk);
        c.t.v_new = TensorView::bshd(pool.v.data(), dtype, 2, 5, 1, p.head_dim_v);
        c.t.rotary_cos = TensorView::bshd(cos.data(), DType::kFloat32, 1, 64, 1, 5);
        c.t.rotary_sin = TensorView::bshd(sin.data(), DType::kFloat32, 1, 64, 1, 5);
      };
      bind(want);
      reference::append(p, c.t);
      bind(got);
      const Status status = c.run(options());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(got.k, want.k);
      EXPECT_EQ(got.v, want.v);
      expect_close(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuAttention, testing::ValuesIn(runnable_levels()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace attn::cpu
