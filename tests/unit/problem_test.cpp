// Problem: the scale in force, when an alignment is needed, and the problem string both ways.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <random>

namespace {

using attn::Alignment;
using attn::DType;
using attn::parse;
using attn::Problem;
using attn::to_string;

TEST(Problem, DefaultScaleIsThatOfTheTrueHeadDim) {
  Problem p;
  p.head_dim_qk = 72;
  EXPECT_EQ(p.scale(), static_cast<float>(1.0 / std::sqrt(72.0)));
  p.softmax_scale = 0.0F;
  EXPECT_EQ(p.scale(), 0.0F);
  p.softmax_scale = -2.0F;
  EXPECT_EQ(p.scale(), -2.0F);
}

TEST(Problem, AlignmentIsNeededWhereAMaskDependsOnIt) {
  Problem p;
  EXPECT_FALSE(p.needs_alignment());
  for (const auto& change : {+[](Problem& x) { x.causal = true; }, +[](Problem& x) { x.window_left = 0; },
                             +[](Problem& x) { x.window_right = 0; }, +[](Problem& x) { x.alibi = true; },
                             +[](Problem& x) { x.rotary_dim = 2; }}) {
    Problem changed;
    change(changed);
    EXPECT_TRUE(changed.needs_alignment());
  }
}

TEST(ProblemString, PrintsTheExampleOfItsDocument) {
  Problem p;
  ASSERT_TRUE(parse("b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=br window=512,0", &p).ok());
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.heads_q, 32);
  EXPECT_EQ(p.heads_kv, 8);
  EXPECT_EQ(p.seqlen_q, 4096);
  EXPECT_EQ(p.seqlen_kv, 4096);
  EXPECT_EQ(p.head_dim_qk, 128);
  EXPECT_EQ(p.head_dim_v, 128);
  EXPECT_EQ(p.dtype, DType::kBFloat16);
  EXPECT_TRUE(p.causal);
  EXPECT_EQ(p.alignment, Alignment::kBottomRight);
  EXPECT_EQ(p.window_left, 512);
  EXPECT_EQ(p.window_right, 0);
  EXPECT_EQ(to_string(p), "b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=br window=512,0");
}

TEST(ProblemString, MissingSizesFollowTheOthers) {
  Problem p;
  ASSERT_TRUE(parse(" fp32  d64 sq7\thq3 ", &p).ok());  // any order, any white space
  EXPECT_EQ(to_string(p), "b1 hq3 hk3 sq7 sk7 d64 fp32");
}

TEST(ProblemString, EveryFieldGoesBothWays) {
  Problem p;
  p.dtype = DType::kFloat16;
  p.batch = 3;
  p.seqlen_q = 5;
  p.seqlen_kv = 96;
  p.heads_q = 8;
  p.heads_kv = 2;
  p.head_dim_qk = 72;
  p.head_dim_v = 40;
  p.softmax_scale = -0.1F;  // prints as the shortest text that gives the same float
  p.alignment = Alignment::kTopLeft;
  p.window_left = 0;
  p.window_right = -1;
  p.softcap = 30.5F;
  p.sinks = true;
  p.lse_with_sink = false;
  p.alibi = true;
  p.varlen_q = true;
  p.total_q = 12;
  p.seqused_kv = true;
  p.page_size = 16;
  p.num_pages = 40;
  p.seqlen_new = 2;
  p.rotary_dim = 64;
  p.rotary_style = attn::RotaryStyle::kInterleaved;
  p.num_splits = 4;
  p.want_lse = true;
  p.batch_invariant = true;
  p.deterministic = false;
  const std::string text = to_string(p);
  Problem back;
  const attn::Status status = parse(text, &back);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(back, p) << text << "\n" << to_string(back);
}

TEST(ProblemString, RandomProblemsGoBothWays) {
  std::mt19937_64 random(5);
  const auto coin = [&] { return (random() & 1U) != 0; };
  for (int n = 0; n < 2000; ++n) {
    Problem p;
    p.dtype = static_cast<DType>(random() % 3);
    p.batch = static_cast<std::int64_t>(random() % 70000);
    p.seqlen_q = static_cast<std::int64_t>(random() % 2147483648U);
    p.seqlen_kv = static_cast<std::int64_t>(random() % 100);
    p.heads_kv = 1 + static_cast<std::int64_t>(random() % 8);
    p.heads_q = p.heads_kv * (1 + static_cast<std::int64_t>(random() % 8));
    p.head_dim_qk = 1 + static_cast<std::int64_t>(random() % 512);
    p.head_dim_v = 1 + static_cast<std::int64_t>(random() % 512);
    if (coin()) {
      p.softmax_scale = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xBFFFFFFFU);
    }
    p.causal = coin();
    p.alignment = p.causal || coin() ? Alignment::kBottomRight : Alignment::kUnset;
    p.window_left = coin() ? -1 : static_cast<std::int64_t>(random() >> 1);
    p.softcap = coin() ? 0.0F : std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x3FFFFFFFU);
    p.sinks = coin();
    p.want_lse = coin();
    p.num_splits = static_cast<std::int64_t>(random() % 9);
    Problem back;
    const attn::Status status = parse(to_string(p), &back);
    ASSERT_TRUE(status.ok()) << to_string(p) << ": " << status.message();
    ASSERT_EQ(back, p) << to_string(p);
  }
}

struct BadText {
  const char* text;
  const char* message;  // part of it
};

class BadProblemString : public testing::TestWithParam<BadText> {};

TEST_P(BadProblemString, IsRefusedWithTheToken) {
  Problem p;
  p.batch = 77;
  const attn::Status status = parse(GetParam().text, &p);
  EXPECT_EQ(status.code(), attn::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos) << status.message();
  EXPECT_EQ(p.batch, 77) << "the result was touched";
}

INSTANTIATE_TEST_SUITE_P(
    Tokens, BadProblemString,
    testing::Values(BadText{"", "'sq' is missing"}, BadText{"sq4 fp32", "'d' is missing"},
                    BadText{"sq4 d8", "'dtype' is missing"}, BadText{"sq4 sq5 d8 fp32", "'sq5'"},
                    BadText{"sq4 d8 fp32 bf16", "'bf16'"}, BadText{"sq4x d8 fp32", "'sq4x'"},
                    BadText{"sq99999999999999999999 d8 fp32", "'sq99999999999999999999'"},
                    BadText{"sq4 d8 fp64", "'fp64'"}, BadText{"sq4 d8 fp32 causal", "'causal'"},
                    BadText{"sq4 d8 fp32 causal=yes", "causal=br"},
                    BadText{"sq4 d8 fp32 causal=br align=tl", "'align=tl'"},
                    BadText{"sq4 d8 fp32 window=3", "window=<left>,<right>"},
                    BadText{"sq4 d8 fp32 window=,3", "window=<left>,<right>"},
                    BadText{"sq4 d8 fp32 softcap=", "softcap=<number>"},
                    BadText{"sq4 d8 fp32 scale=1x", "scale=<number>"},
                    BadText{"sq4 d8 fp32 rotary=8", "rotary=<dim>,half"},
                    BadText{"sq4 d8 fp32 page=", "page=<whole number>"},
                    BadText{"sq4 d8 fp32 lse lse", "'lse'"}, BadText{"sq4 d8 fp32 =", "'='"},
                    BadText{"sq4 d8 fp32 12", "'12'"},
                    BadText{"sq4 d8 fp32 \x1b[31m\xc3\xa9",
                            "'?[31m?"
                            "?'"}));

}  // namespace
