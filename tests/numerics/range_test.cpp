// Logits of any spread, V of any power of two, long rows, the LSE's last digits: rule 13 where it is hardest.
#include "support.hpp"

namespace attn::testing {
namespace {

std::string line_of(const std::string& shape, const char* type, const std::string& rest = "") {
  return shape + " lse " + type + rest;
}

// The row maximum goes up at every tile, so that every tile rescales what was summed before.
TEST(Numerics, GrowingLogits) {
  for (const char* type : kDTypes) {
    for (const char* data : {" data=drift", " data=steps", " data=ramp", " data=alt", " data=sinkkey"}) {
      expect_line(line_of("hq2 hk1 sq5 sk4096 d64", type, data));
      expect_line(line_of("hq1 hk1 sq130 sk1000 d128 causal=br", type, data));
    }
  }
}

// The opposite: the maximum comes first, everything after it is small, and is summed without loss.
TEST(Numerics, FallingLogits) {
  for (const char* type : kDTypes) {
    const Fills fills{
        constant(1),
        [](const verify::RowId& id, std::int64_t) { return -0.002F * static_cast<float>(id.pos); },
        [](const verify::RowId& id, std::int64_t c) { return static_cast<float>((id.pos + c) % 5); }};
    run_plans(line_of("sq3 sk5000 d64", type), fills);
  }
}

TEST(Numerics, LongRows) {
  for (const char* type : kDTypes) {
    for (const char* data : {"", " data=sd8", " data=drift"}) {
      expect_line(line_of("hq1 hk1 sq4 sk32768 d64", type, data));
      expect_line(line_of("hq1 hk1 sq4 sk32768 d64 splits=8", type, data));
    }
  }
}

// Equal logits: O is V, LSE = logit + ln n, for every n up to 32k.
TEST(Numerics, UniformRowsOfAnyLength) {
  for (const char* type : kDTypes) {
    for (const std::int64_t n : {1, 2, 3, 100, 1000, 4097, 32768}) {
      for (const float k : {0.0F, 2.0F, -3.0F}) {
        run_plans(line_of("sq2 d16 sk" + std::to_string(n), type),
                  Fills{constant(1), constant(k), constant(0.75)}, [&](const Results& r) {
                    EXPECT_NEAR(r.o(0, 0, 1, 15), 0.75, 0x1p-20 * 0.75);
                    const double lse = 4.0 * static_cast<double>(k) + std::log(static_cast<double>(n));
                    EXPECT_NEAR(r.lse(0, 0, 1), lse, 2e-6 * std::max(1.0, std::abs(lse))) << n;
                  });
      }
    }
  }
}

// Better than the bound asks for: fp32 logits and sums leave an LSE of six digits on ordinary data.
TEST(Numerics, LseHasSixDigitsOnOrdinaryData) {
  for (const char* type : kDTypes) {
    for (const PlanOptions& plan : all_levels()) {
      const verify::Report report = verify::check(case_of(line_of("hq2 hk1 sq65 sk1000 d64", type)), plan);
      EXPECT_TRUE(report.passed) << report.failure;
      EXPECT_LT(report.max_error_lse, 1e-5) << plan.cpu_level << " " << type;
    }
  }
}

// Multiplying V by a power of two multiplies O by it, bit for bit: nothing on the way may overflow, underflow
// or be compared with a constant that lies between them. (On the level amx values on either side of 2⁻⁷² have
// sums of their own in fp32, and are rounded otherwise than together.)
TEST(Numerics, ScaledValuesScaleTheOutputExactly) {
  for (const char* type : kDTypes) {
    const bool fp16 = std::string(type) == "fp16";
    const std::vector<int> powers =
        fp16 ? std::vector<int>{-4, 5, 12} : std::vector<int>{-100, -64, -37, 64, 100};
    for (const char* shape :
         {"hq2 hk1 sq33 sk300 d64 causal=br", "hq1 hk1 sq1 sk3000 d64 splits=3", "sq65 sk65 d72"}) {
      // V in [0.5, 1.5): every mean of it, and it times the powers, is a normal number in fp16 too.
      const auto values = [](int power) {
        return [power](const verify::RowId& id, std::int64_t c) {
          return std::ldexp(0.5F + static_cast<float>((id.pos * 37 + c * 11) % 64) / 64.0F, power);
        };
      };
      std::vector<std::vector<float>> plain;
      run_plans(std::string(shape) + " " + type, Fills{{}, {}, values(0)},
                [&](const Results& r) { plain.push_back(r.all()); });
      for (const int power : powers) {
        const std::string line = std::string(shape) + " " + type;
        std::size_t plan = 0;
        run_plans(line, Fills{{}, {}, values(power)}, [&](const Results& r) {
          std::vector<float> want = plain.at(plan++);
          for (float& x : want) {
            x = std::ldexp(x, power);
          }
          EXPECT_TRUE(same_bits(r.all(), want)) << "V times 2^" << power;
        });
      }
    }
  }
}

TEST(Numerics, HundredPowersOfTwoEitherWay) {
  for (const char* type : kDTypes) {
    for (const char* data : {" data=largev", " data=smallv"}) {
      expect_line(line_of("hq2 hk1 sq65 sk700 d64 causal=br", type, data));
      expect_line(line_of("hq2 hk1 sq1 sk3000 d128 splits=7", type, data));
      expect_line(line_of("b2 hq2 hk1 sq3 sk300 d80 page=16 lens_kv=300,33", type, data));
    }
  }
}

// fp16: one key at the maximum and 32767 whose weights lie half-way between two of the smallest fp16 numbers.
// Rounded one and all in the same direction they may add up to the whole bound, and no more.
TEST(Numerics, WeightsAmongTheSmallestFp16Numbers) {
  for (const double steps : {1.5, 2.5, 7.5, 100.5}) {
    // Logit of the small ones, exact in fp16 through K alone at d = 1, scale = 1 only to three digits: good
    // enough to stay near the half.
    const float logit = static_cast<float>(std::log(steps * 0x1p-24));
    const Fills fills{constant(1),
                      [&](const verify::RowId& id, std::int64_t) { return id.pos == 100 ? 0.0F : logit; },
                      [](const verify::RowId& id, std::int64_t) { return id.pos == 100 ? 0.0F : 1.0F; }};
    run_plans("sq2 sk32768 d1 fp16 scale=1 lse", fills);
  }
}

// Logits beyond fp16's largest number and down to its smallest ones: they are fp32 whatever the inputs are.
TEST(Numerics, LogitsBeyondTheInputsRange) {
  for (const float k : {1000.0F, -1000.0F, 0x1p-14F}) {
    run_plans("sq2 sk130 d128 fp16 scale=1 lse",
              Fills{constant(k), constant(k),
                    [](const verify::RowId& id, std::int64_t) { return static_cast<float>(id.pos % 2); }},
              [&](const Results& r) {
                EXPECT_NEAR(r.o(0, 0, 0), 0.5, 1e-3);
                const double lse = 128.0 * static_cast<double>(k) * static_cast<double>(k) + std::log(130.0);
                EXPECT_NEAR(r.lse(0, 0, 0) / lse, 1.0, 2e-6);
              });
  }
}

TEST(Numerics, RowsThatSeeNothing) {
  for (const char* type : kDTypes) {
    for (const char* line :
         {"sq300 sk65 d64 causal=br", "sq300 sk65 d64 align=tl window=3,3",
          "sq300 sk65 d64 align=br window=5,3", "b3 sq33 sk70 d64 causal=br seqused lens_kv=0,1,70",
          "b2 sq3 sk0 d64", "b2 sq300 sk65 d64 causal=br splits=3",
          "b2 hq2 hk1 sq300 sk65 d64 causal=br softcap=3 alibi scale=-1"}) {
      expect_line(line_of(line, type));
    }
  }
}

// Rule 13's bound has room for a result that is cut off instead of rounded; this has not. Means of two and
// four values are exact in fp32, and lie on ties and beside them in the 16-bit types.
TEST(Numerics, OutputsAreRoundedToNearestEven) {
  struct Mean {
    int numerators[4];  // V = 1 + numerator · ulp
    int want;           // O = 1 + want · ulp
  };
  constexpr Mean kMeans[] = {{{0, 1, 0, 1}, 0}, {{1, 2, 1, 2}, 2}, {{2, 3, 2, 3}, 2}, {{3, 4, 3, 4}, 4},
                             {{0, 1, 1, 1}, 1}, {{0, 0, 0, 1}, 0}, {{2, 3, 3, 3}, 3}, {{5, 5, 5, 6}, 5}};
  for (const auto& [type, ulp] : {std::pair{"bf16", 0x1p-7F}, std::pair{"fp16", 0x1p-10F}}) {
    for (const Mean& mean : kMeans) {
      for (const float sign : {1.0F, -1.0F}) {
        for (const char* shape : {"sq1 sk4 d72", "sq130 sk4 d64", "sq2 sk4 d7", "sq1 sk4 d64 splits=2"}) {
          const Fill v = [&, step = ulp](const verify::RowId& id, std::int64_t) {
            return sign * (1.0F + static_cast<float>(mean.numerators[id.pos]) * step);
          };
          run_plans(std::string(shape) + " " + type, Fills{constant(0), constant(0), v},
                    [&, step = ulp](const Results& r) {
                      const auto want =
                          static_cast<double>(sign * (1.0F + static_cast<float>(mean.want) * step));
                      EXPECT_EQ(r.o(0, 0, 0, 0), want);
                      EXPECT_EQ(r.o(0, 0, 0, 6), want);
                    });
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::testing
