// The level amx and values too small for its tile products, below 2⁻⁷² in fp32 and 2⁻¹⁰⁰ in bf16: they go
// through products of their own, times a constant (split_v), and have sums of their own. Right values beside
// others and alone, and no bit in rows that do not see them. Skipped where the CPU or the system has no AMX.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "cpu_amx_test_util.hpp"

namespace attn::cpu {
namespace {

class CpuAmxSmallValues : public CpuAmxType {
 protected:
  // The least value that the products take.
  [[nodiscard]] static float least() { return GetParam() == DType::kFloat32 ? 0x1p-72F : 0x1p-100F; }
  // On either side of it, subnormal ones, and the smallest of the type.
  [[nodiscard]] static std::vector<float> borders() {
    const float below = GetParam() == DType::kFloat32 ? std::nextafter(least(), 0.0F) : 0x1.fcp-101F;
    const float smallest = GetParam() == DType::kFloat32 ? 0x1p-149F : 0x1p-133F;
    return {least(),   below,     least() / 16, 0x1p-100F, 0x1.8p-101F,
            0x1p-125F, 0x1p-126F, 0x1.8p-127F,  smallest};
  }
};

INSTANTIATE_TEST_SUITE_P(Types, CpuAmxSmallValues, testing::Values(DType::kFloat32, DType::kBFloat16),
                         name_of_type);

// values(key, column) in the place of V.
template <class Values>
void set_values(DenseCase* c, const Values& values) {
  const Problem& p = c->p;
  for (std::int64_t key = 0; key < p.seqlen_kv; ++key) {
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      core::store_element(c->v.data(), p.dtype, key * p.head_dim_v + d, values(key, d));
    }
  }
}

// Bytes of the rows of queries [0, queries).
std::size_t row_bytes(const Problem& p, std::int64_t queries) {
  return static_cast<std::size_t>(queries * p.heads_q * p.head_dim_v) * size_of(p.dtype);
}

TEST_P(CpuAmxSmallValues, SplitPackingTellsSmallFromPoison) {
  struct Found {
    float value;
    bool small;
    bool poison;
  };
  std::vector<Found> all = {{0.0F, false, false}, {-0.0F, false, false}, {1.0F, false, false},
                            {kInf, false, true},  {-kInf, false, true},  {std::nanf(""), false, true}};
  for (const float x : borders()) {
    all.push_back({x, x < least(), false});
    all.push_back({-x, x < least(), false});
  }
  if (GetParam() == DType::kFloat32) {
    all.push_back({0x1.000002p126F, false, true});
  }
  for (const int dim : {1, 17, 40, 64}) {
    ElementRows v(GetParam(), 64, dim, 5);
    const Floats panels(floats_of(64, dim));
    const Floats small(floats_of(64, dim));
    for (const int row : {0, 15, 17, 63}) {
      for (const Found& want : all) {
        v.set(row, dim - 1, want.value);
        const UnfitV found =
            kernels_->split_v(v.pointers.data(), 0, 64, dim, 64, panels.data(), small.data());
        EXPECT_EQ(found.small, want.small) << want.value;
        EXPECT_EQ(found.poison, want.poison) << want.value;
        EXPECT_EQ(kernels_->pack_v(v.pointers.data(), 0, 64, dim, GetParam(), 64, panels.data()),
                  !want.small && !want.poison)
            << want.value;
      }
      v.set(row, dim - 1, 1.0F);
    }
  }
}

// All of V of one size, with weights alike and spread over all of their range.
TEST_P(CpuAmxSmallValues, KeepTheBoundAtEverySize) {
  const int lowest = GetParam() == DType::kFloat32 ? -149 : -133;
  for (const float spread : {1.0F, 30.0F}) {
    for (int power = lowest; power <= -64; power += power > -80 ? 1 : 7) {
      DenseCase c(causal_problem(GetParam()));
      scale_all(&c.q, c.p.dtype, spread);
      scale_all(&c.v, c.p.dtype, std::ldexp(1.0F, power));
      ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
      expect_within_bound(c, "values of 2^" + std::to_string(power));
    }
  }
}

// Every size in every key and column; and columns of two neighbouring sizes, whose sums meet at the end.
TEST_P(CpuAmxSmallValues, KeepTheBoundBesideOthers) {
  std::vector<float> sizes = borders();
  sizes.insert(sizes.end(), {0.0F, 1.0F, 0x1p-50F});
  const auto count = static_cast<std::int64_t>(sizes.size());
  for (const bool mixed : {true, false}) {
    for (const float spread : {1.0F, 30.0F}) {
      DenseCase c(causal_problem(GetParam()));
      scale_all(&c.q, c.p.dtype, spread);
      set_values(&c, [&](std::int64_t key, std::int64_t d) {
        const std::int64_t which = mixed ? key * 7 + d * 5 + key / 11 : d + key % 2;
        const float sign = (key / 3 + d) % 2 == 0 ? 1.0F : -1.0F;
        return sign * sizes[static_cast<std::size_t>(which % count)];
      });
      ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
      expect_within_bound(c, mixed ? "all sizes" : "two sizes a column");
    }
  }
}

// Small values in one tile only, with maxima that grow or fall from tile to tile: their sums are rescaled
// with the tiles that hold none, and begin where the task meets the first.
TEST_P(CpuAmxSmallValues, InOneTileOfMany) {
  for (const float growth : {0.02F, -0.02F}) {
    for (const std::int64_t tile : {0, 1, 3}) {
      Problem p = causal_problem(GetParam(), 40, 1000);
      p.softmax_scale = 1;
      DenseCase c(p);
      std::memset(c.q.data(), 0, c.q.size());
      std::memset(c.k.data(), 0, c.k.size());
      for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
        core::store_element(c.q.data(), p.dtype, r * p.head_dim_qk, 1.0F);
      }
      for (std::int64_t key = 0; key < p.seqlen_kv; ++key) {
        core::store_element(c.k.data(), p.dtype, key * p.head_dim_qk, growth * static_cast<float>(key));
      }
      // Other values only in the odd columns: in the even ones what is small is all there is.
      set_values(&c, [&](std::int64_t key, std::int64_t d) {
        const bool here = key / 256 == tile;
        return here ? least() * (0.25F + static_cast<float>(key % 5) / 16) : d % 2 == 0 ? 0.0F : 0x1p-70F;
      });
      ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
      expect_within_bound(c, "tile " + std::to_string(tile));
    }
  }
}

// Rule 6: keys that a row does not see change no bit of it, whether they or others hold small values, NaN or
// neither; and bits do not depend on how rows are cut into tasks.
TEST_P(CpuAmxSmallValues, UnseenKeysHaveNoInfluence) {
  constexpr std::int64_t kKey = 262;  // seen by queries from 32 on
  const Problem p = causal_problem(GetParam());
  for (const float size : {1.0F, least() / 2, 0x1p-120F}) {
    for (const std::int64_t every : {1, 3}) {  // of so many keys one has that size, the others are 0 or −0
      const auto values = [&](std::int64_t key, std::int64_t d) {
        const float sign = (key + d) % 2 == 0 ? 1.0F : -1.0F;
        return sign * (key % every == 0 ? size * static_cast<float>(1 + d % 3) : 0.0F);
      };
      DenseCase plain(p);
      set_values(&plain, values);
      ASSERT_TRUE(plain.run(cpu_options("amx", 1)).ok());
      for (const float x :
           {0.0F, -0.0F, 1.0F, 0x1p-80F, -0x1p-110F, 0x1p-130F, 3.0e38F, -kInf, std::nanf("")}) {
        DenseCase c(p);
        set_values(&c, [&](std::int64_t key, std::int64_t d) { return key == kKey ? x : values(key, d); });
        ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
        EXPECT_EQ(std::memcmp(c.o.data(), plain.o.data(), row_bytes(p, 32)), 0) << size << " " << x;
        DenseCase two(p);
        two.v = c.v;
        two.t.v.data = two.v.data();
        ASSERT_TRUE(two.run(cpu_options("amx", 2)).ok());
        EXPECT_EQ(two.o, c.o) << size << " " << x;
      }
    }
  }
}

// Rule 7 beside small values: an infinite or NaN value is what it is, in its column and in the rows that see
// it.
TEST_P(CpuAmxSmallValues, BesideInfinitiesAndNaN) {
  constexpr std::int64_t kKey = 262;  // seen by queries from 32 on
  const Problem p = causal_problem(GetParam());
  DenseCase plain(p);
  scale_all(&plain.v, p.dtype, 0x1p-110F);
  ASSERT_TRUE(plain.run(cpu_options("amx", 1)).ok());
  for (const float x : {kInf, -kInf, std::nanf("")}) {
    DenseCase c(p);
    c.v = plain.v;
    c.t.v.data = c.v.data();
    core::store_element(c.v.data(), p.dtype, kKey * p.head_dim_v + 7, x);
    ASSERT_TRUE(c.run(cpu_options("amx", 1)).ok());
    for (std::int64_t r = 0; r < p.seqlen_q * p.heads_q; ++r) {
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        const float got = core::load_element(c.o.data(), p.dtype, r * p.head_dim_v + d);
        const float before = core::load_element(plain.o.data(), p.dtype, r * p.head_dim_v + d);
        const bool seen = r / p.heads_q >= 32 && d == 7;
        if (seen && std::isnan(x)) {
          ASSERT_TRUE(std::isnan(got)) << r;
        } else if (seen) {
          ASSERT_EQ(got, x) << r;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(before)) << r << " " << d;
        }
      }
    }
  }
}

// In batch-invariant mode a sequence's bits do not depend on its neighbours in the batch: here one whose
// values are small beside one whose are not.
TEST_P(CpuAmxSmallValues, BatchInvariantBits) {
  Problem p = causal_problem(GetParam(), 40, 5000);
  p.batch_invariant = true;
  p.batch = 2;
  DenseCase both(p);
  const std::size_t of_one = both.v.size() / 2;
  std::vector<unsigned char> first(both.v.begin(), both.v.begin() + static_cast<std::ptrdiff_t>(of_one));
  scale_all(&first, p.dtype, 0x1p-90F);
  std::copy(first.begin(), first.end(), both.v.begin());
  ASSERT_TRUE(both.run(cpu_options("amx", 2)).ok());
  p.batch = 1;
  for (std::size_t b = 0; b < 2; ++b) {
    DenseCase one(p);
    const auto half = [&](const std::vector<unsigned char>& x) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(b * (x.size() / 2));
      return std::vector<unsigned char>(begin, begin + static_cast<std::ptrdiff_t>(x.size() / 2));
    };
    const auto give = [&](const std::vector<unsigned char>& x, std::vector<unsigned char>* to) {
      const std::vector<unsigned char> part = half(x);
      ASSERT_EQ(part.size(), to->size());
      std::copy(part.begin(), part.end(), to->begin());
    };
    give(both.q, &one.q);
    give(both.k, &one.k);
    give(both.v, &one.v);
    ASSERT_TRUE(one.run(cpu_options("amx", 1)).ok());
    EXPECT_EQ(one.o, half(both.o)) << b;
    expect_within_bound(one, "alone");
  }
}

}  // namespace
}  // namespace attn::cpu
