// Rule 6 inside a tile: a key that some rows see and others do not. Whatever its bits are, the rows that do
// not see it keep theirs; the rows that see it become what arithmetic makes of them.
#include <array>

#include "support.hpp"

namespace attn::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Influence {
  const char* line;
  std::vector<std::int64_t> keys;
};

// Rows of O, with the rows' (b, i), before and after one key of every sequence and head was replaced.
void expect_no_influence(const std::string& line, std::int64_t key, verify::Which which, float value,
                         const PlanOptions& plan) {
  const verify::Case c = case_of(line);
  const auto run_with = [&](bool replaced) {
    auto buffers = std::make_unique<verify::Buffers>(c);
    if (replaced) {
      buffers->rewrite(which, [&](const verify::RowId& id, std::span<float> row) {
        if (id.pos == key) {
          std::fill(row.begin(), row.end(), value);
        }
      });
    }
    verify::RunInfo info;
    EXPECT_TRUE(verify::host_runner()(*buffers, plan, 0xFF, &info).ok());
    return buffers;
  };
  const auto before = run_with(false);
  const auto after = run_with(true);
  const Problem& p = c.problem;
  std::int64_t blind = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, before->tensors(), b);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      const core::KeyRange seen = core::visible_keys(p, s, i);
      if (key >= seen.begin && key < seen.end) {
        continue;
      }
      ++blind;
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        const Results x(*before);
        const Results y(*after);
        for (std::int64_t n = 0; n < p.head_dim_v; ++n) {
          ASSERT_EQ(x.o(b, h, i, n), y.o(b, h, i, n))
              << plan.cpu_level << ": " << line << ", key " << key << " = " << value << ", row " << i;
        }
        ASSERT_EQ(x.lse(b, h, i), y.lse(b, h, i)) << line << ", key " << key << ", row " << i;
      }
    }
  }
  EXPECT_GT(blind, 0) << line << ": some row must not see key " << key;
}

class MaskedKeys : public ::testing::TestWithParam<const char*> {};

TEST_P(MaskedKeys, HaveNoInfluenceOnRowsThatDoNotSeeThem) {
  const Influence kCases[] = {
      {"hq2 hk1 sq100 sk100 d64 causal=br lse ", {1, 33, 63, 64, 99}},
      {"hq2 hk1 sq70 sk300 d64 causal=br lse ", {231, 250, 299}},
      {"hq1 hk1 sq100 sk60 d72 causal=tl lse ", {1, 31, 59}},
      {"hq1 hk1 sq130 sk130 d64 align=br window=20,10 lse ", {0, 64, 129}},
      {"b2 hq2 hk1 sq33 sk200 d64 causal=br page=16 lse lens_kv=200,150 ", {140, 185}},
      {"hq2 hk1 sq2 sk500 d64 causal=br splits=4 lse ", {499}},
      {"hq2 hk1 sq3 sk500 d64 align=br window=100,0 splits=4 lse ", {200, 398}},
  };
  for (const PlanOptions& plan : all_levels()) {
    for (const Influence& influence : kCases) {
      for (const std::int64_t key : influence.keys) {
        const std::string line = influence.line + std::string(GetParam());
        for (const float value : {kNaN, kInf, -kInf, 3e4F}) {
          expect_no_influence(line, key, verify::Which::kK, value, plan);
          expect_no_influence(line, key, verify::Which::kV, value, plan);
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, MaskedKeys, ::testing::ValuesIn(kDTypes));

// Rule 7: a visible NaN comes out. One key holds it; the rows that see it are NaN, in all channels (K) or in
// one (V).
TEST(VisibleKeys, NaNComesOutWhereItIsSeen) {
  for (const char* type : kDTypes) {
    constexpr std::int64_t kKey = 40;
    const std::string line = std::string("hq2 hk1 sq70 sk70 d64 causal=br lse ") + type;
    const auto spoil = [&](verify::Which which, std::size_t channel, float value) {
      return [=](verify::Buffers& buffers) {
        buffers.rewrite(which, [=](const verify::RowId& id, std::span<float> row) {
          if (id.pos == kKey) {
            row[channel] = value;
          }
        });
      };
    };
    run_plans(line, spoil(verify::Which::kK, 63, kNaN), [](const Results& r) {
      for (std::int64_t i = 0; i < 70; ++i) {
        ASSERT_EQ(std::isnan(r.o(0, 1, i, 5)), i >= kKey) << i;
        ASSERT_EQ(std::isnan(r.lse(0, 1, i)), i >= kKey) << i;
      }
    });
    run_plans(line, spoil(verify::Which::kV, 9, kNaN), [](const Results& r) {
      for (std::int64_t i = 0; i < 70; ++i) {
        ASSERT_EQ(std::isnan(r.o(0, 0, i, 9)), i >= kKey) << i;
        ASSERT_FALSE(std::isnan(r.o(0, 0, i, 8))) << i;
        ASSERT_FALSE(std::isnan(r.lse(0, 0, i))) << i;
      }
    });
    run_plans(line, spoil(verify::Which::kV, 9, kInf), [](const Results& r) {
      for (std::int64_t i = 0; i < 70; ++i) {
        ASSERT_EQ(r.o(0, 0, i, 9) == kInfinity, i >= kKey) << i;
      }
    });
    run_plans(line, spoil(verify::Which::kQ, 0, kNaN), [](const Results& r) {
      for (std::int64_t i = 0; i < 70; ++i) {
        ASSERT_EQ(std::isnan(r.o(0, 1, i, 63)), i == kKey) << i;
      }
    });
  }
}

// Rule 7: a row whose logits are all −inf by data is an empty row; one −inf among others is a key of weight
// 0.
TEST(VisibleKeys, RowsOfMinusInfinityAreEmpty) {
  for (const char* type : kDTypes) {
    for (const char* extra : {"", " splits=3", " page=16 lens_kv=200"}) {
      run_plans(std::string("sq3 sk200 d8 lse ") + type + extra,
                Fills{constant(1), constant(-kInf), constant(5)}, [](const Results& r) {
                  EXPECT_EQ(r.o(0, 0, 2, 7), 0.0);
                  EXPECT_EQ(r.lse(0, 0, 2), -kInfinity);
                });
      const Fills one{constant(1),
                      [](const verify::RowId& id, std::int64_t) { return id.pos == 150 ? 0.0F : -kInf; },
                      key_index()};
      run_plans(std::string("sq3 sk200 d8 lse ") + type + extra, one, [](const Results& r) {
        EXPECT_EQ(r.o(0, 0, 2, 7), 150.0);
        EXPECT_EQ(r.lse(0, 0, 2), 0.0);
      });
    }
  }
}

}  // namespace
}  // namespace attn::testing
