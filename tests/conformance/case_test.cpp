// The case line: both directions, completion, what is refused. Random data is what random.hpp says.
#include "support.hpp"
#include "verify/random.hpp"

namespace attn::testing {
namespace {

TEST(CaseLine, PrintsAndParsesBack) {
  const std::string line =
      "b2 hq8 hk2 sq130 sk300 d64 bf16 causal=br seqused lens_kv=300,0 data=ramp layout=bhsd offset=1 seed=7";
  EXPECT_EQ(verify::to_string(case_of(line)), line);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const verify::Case c = verify::random_case(seed);
    EXPECT_EQ(case_of(verify::to_string(c)), c) << verify::to_string(c);
  }
}

TEST(CaseLine, LengthsImplyTheirOption) {
  const verify::Case c = case_of("b3 hq1 hk1 sq9 sk9 d8 fp32 lens_q=9,0,1 lens_kv=1x3");
  EXPECT_TRUE(c.problem.varlen_q);
  EXPECT_EQ(c.problem.total_q, 10 + 3);  // three rows of slack
  EXPECT_TRUE(c.problem.seqused_kv);
  EXPECT_EQ(c.lens_kv, (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(case_of("b1 hq1 hk1 sq1 sk40 d8 fp32 page=16 lens_kv=33").problem.num_pages, 3 + 2);
  EXPECT_TRUE(case_of("b1 hq1 hk1 sq1 sk40 d8 fp32 new=1").problem.seqused_kv);
}

TEST(CaseLine, DrawnLengthsDependOnTheSeedAlone) {
  const std::string line = "b8 hq1 hk1 sq90 sk90 d8 fp32 varlen_q=0 varlen_kv=0 seed=";
  EXPECT_EQ(case_of(line + "5"), case_of(line + "5"));
  EXPECT_NE(case_of(line + "5").lens_q, case_of(line + "6").lens_q);
}

TEST(CaseLine, RefusalsQuoteTheTokenAndWhatIsAllowed) {
  struct Refusal {
    const char* line;
    const char* words;
  };
  constexpr Refusal kRefusals[] = {
      {"b1 sq4 d8 fp32 data=wrong", "token 'data=wrong' is not valid; allowed: data=normal, sd8"},
      {"b1 sq4 d8 fp32 layout=sdhb", "allowed: layout=bshd, bhsd"},
      {"b1 sq4 d8 fp32 poison=x", "allowed: poison=nan, inf, huge, zero"},
      {"b1 sq4 d8 fp32 seed=-1", "allowed: seed="},
      {"b1 sq4 d8 fp32 seed=1 seed=2", "allowed: seed once"},
      {"b1 sq4 d8 fp32 offset=x", "allowed: offset="},
      {"b1 sq4 d8 fp32 offset=-1", "offset=-1; allowed: 0 to 4096"},
      {"b2 sq4 d8 fp32 lens_q=4", "lens_q has 1 lengths; allowed: one for each of the 2"},
      {"b2 sq4 d8 fp32 lens_q=4,", "allowed: lens_q="},
      {"b2 sq4 d8 fp32 lens_q=4,5", "lens_q holds 5; allowed: 0 to 4"},
      {"b2 sq4 d8 fp32 lens_q=4,-1", "lens_q holds -1; allowed: 0 to 4"},
      {"b1 sq4 d8 fp32 lens_q=1x99999999999", "allowed: lens_q="},
      {"b1 sq4 d8 fp32 new=1 lens_kv=4", "lens_kv holds 4; allowed: 0 to 3"},
      {"b1 sq4 d8 fp32 new=1 layout=bcast_heads", "layout=bcast_heads with an append"},
      {"b1 sq4 d8 fp32 page=2 layout=bcast_keys", "layout=bcast_keys with paged"},
      {"b1 sq4 d8 fp32 shared=1", "shared=1; allowed: 0"},
      {"b1 sq4 d8 fp32 slopes=batch", "slopes=batch without alibi"},
      {"b1 sq4 d8 fp32 slopes=head alibi align=br", "allowed: slopes=paper, batch, negative"},
      {"b1 sq4 d8 fp32 sink_values=ninf", "sink_values=ninf without sinks; allowed: with sinks"},
      {"b1 sq4 d8 fp32 sinks sink_values=x", "allowed: sink_values=normal, huge, ninf, mixed"},
      {"b1 hq3 hk2 sq4 d8 fp32", "heads_q is 3; allowed: a multiple of heads_kv"},
      {"b1 sq4 d8 fp32 nonsense", "token 'nonsense' is not valid"},
      {"", "missing"},
  };
  for (const Refusal& refusal : kRefusals) {
    verify::Case c;
    c.seed = 1234;
    const Status status = verify::parse(refusal.line, &c);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << refusal.line;
    EXPECT_NE(status.message().find(refusal.words), std::string::npos)
        << refusal.line << "\n  " << status.message();
    EXPECT_EQ(c.seed, 1234U) << "a refused line must leave the case as it was";
  }
}

TEST(CaseLine, ShapeFilesNameTheBadLine) {
  std::vector<verify::Case> cases;
  EXPECT_TRUE(verify::parse_shapes("# only a comment\n\nsq4 d8 fp32 # behind a case\n", &cases).ok());
  EXPECT_EQ(cases.size(), 1U);
  const Status status = verify::parse_shapes("sq4 d8 fp32\n\nsq4 d8 fp33\n", &cases);
  EXPECT_NE(status.message().find("line 3: "), std::string::npos) << status.message();
  EXPECT_EQ(cases.size(), 1U) << "a refused file must add nothing";
  EXPECT_EQ(verify::read_shapes("/nonexistent/shapes.txt", &cases).code(), StatusCode::kFileError);
}

TEST(CaseWork, CountsVisibleScores) {
  EXPECT_EQ(verify::visible_scores(case_of("b2 hq3 hk1 sq4 sk6 d8 fp32")), 2 * 3 * 24);
  EXPECT_EQ(verify::visible_scores(case_of("sq4 sk6 d8 fp32 causal=br")), 3 + 4 + 5 + 6);
  EXPECT_EQ(verify::visible_scores(case_of("sq4 sk2 d8 fp32 causal=br")), 1 + 2);
  EXPECT_EQ(verify::visible_scores(case_of("sq4 sk6 d8 fp32 align=tl window=1,1")), 2 + 3 + 3 + 3);
  EXPECT_EQ(verify::visible_scores(case_of("b2 sq4 sk6 d8 fp32 lens_kv=1,5")), 4 * 6);
  EXPECT_EQ(verify::flops(case_of("sq4 sk6 d8 dv4 fp32")), 2 * 24 * 12);
  // Counted otherwise: the reference's own count of each row's keys.
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const verify::Case c = verify::random_case(seed);
    const verify::Buffers buffers(c);
    double sum = 0;
    for (std::int64_t b = 0; b < c.problem.batch; ++b) {
      const core::Sequence s = core::sequence_of(c.problem, buffers.tensors(), b);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        const core::KeyRange keys = core::visible_keys(c.problem, s, i);
        sum += static_cast<double>(std::max<std::int64_t>(0, keys.end - keys.begin));
      }
    }
    EXPECT_EQ(verify::visible_scores(c), sum * static_cast<double>(c.problem.heads_q))
        << verify::to_string(c);
  }
}

// Quantiles to 1e-6 from tables of the normal distribution; moments of many draws.
TEST(RandomData, IsStandardNormal) {
  constexpr double kTable[][2] = {{0.5, 0.0},
                                  {0.975, 1.959963984540},
                                  {0.01, -2.326347874041},
                                  {0.0013498980316301, -3.0},
                                  {1e-9, -5.997807015008},
                                  {1e-15, -7.941345326171}};
  for (const auto& [p, x] : kTable) {
    EXPECT_NEAR(verify::normal_quantile(p), x, 2e-6 * std::max(1.0, std::abs(x)));
  }
  double sum = 0, sum2 = 0, sum4 = 0;
  constexpr int kDraws = 200000;
  for (int n = 0; n < kDraws; ++n) {
    const double x = verify::random_normal(7, 1, static_cast<std::uint64_t>(n));
    sum += x;
    sum2 += x * x;
    sum4 += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.01);
  EXPECT_NEAR(sum2 / kDraws, 1.0, 0.02);
  EXPECT_NEAR(sum4 / kDraws, 3.0, 0.15);
}

// The bits are part of every reproducing line: they may never change, on no machine.
TEST(RandomData, SameBitsForEver) {
  EXPECT_EQ(verify::random_bits(1, 1, 0), 0xB18A02F46D8D86C3ULL);
  EXPECT_EQ(static_cast<float>(verify::random_normal(1, 1, 0)), 0x1.02fc34p-1F);
  EXPECT_EQ(static_cast<float>(verify::random_normal(7, 2, 12345)), -0x1.7469a4p+0F);
}

}  // namespace
}  // namespace attn::testing
