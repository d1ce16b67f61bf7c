// Problem strings that do not parse: the message quotes the token and says what is allowed; the problem that
// was passed in is left as it was.
#include "refusal.hpp"

namespace attn::testing {
namespace {

struct BadString {
  std::string text;
  std::vector<std::string> words;
};

TEST(StringRefusals, QuoteTheToken) {
  const std::vector<BadString> kBad = {
      {"", {"'sq' is missing"}},
      {"   \t\n", {"missing"}},
      {"sq4 fp32", {"'d' is missing", "required"}},
      {"d4 fp32", {"'sq' is missing"}},
      {"sq4 d4", {"'dtype' is missing", "fp32, fp16, bf16"}},
      {"sq4 d4 fp64", {"'fp64'"}},
      {"sq4 d4 FP32", {"'FP32'"}},
      {"sq4 d4 fp32 fp16", {"'fp16'", "'dtype' was given before"}},
      {"sq4 sq5 d4 fp32", {"'sq5'", "'sq' was given before"}},
      {"sq4 d4 fp32 lse lse", {"'lse'", "given before"}},
      {"sq d4 fp32", {"'sq'"}},
      {"sqx d4 fp32", {"'sqx'"}},
      {"sq4x d4 fp32", {"'sq4x'", "sq<whole number>"}},
      {"sq4.5 d4 fp32", {"'sq4.5'"}},
      {"sq99999999999999999999 d4 fp32", {"'sq99999999999999999999'"}},
      {"sq+4 d4 fp32", {"'sq+4'"}},
      {"q4 sq4 d4 fp32", {"'q4'"}},
      {"sq4 d4 fp32 causal", {"'causal'"}},
      {"sq4 d4 fp32 causal=", {"'causal='", "causal=br (bottom-right) or causal=tl (top-left)"}},
      {"sq4 d4 fp32 causal=bl", {"'causal=bl'", "causal=tl"}},
      {"sq4 d4 fp32 align=?", {"'align=?'", "align=br"}},
      {"sq4 d4 fp32 causal=br align=br", {"'align=br'", "given before"}},
      {"sq4 d4 fp32 window=4", {"'window=4'", "window=<left>,<right>"}},
      {"sq4 d4 fp32 window=4,", {"'window=4,'"}},
      {"sq4 d4 fp32 window=,4", {"'window=,4'"}},
      {"sq4 d4 fp32 window=1,2,3", {"'window=1,2,3'"}},
      {"sq4 d4 fp32 scale=x", {"'scale=x'", "scale=<number>"}},
      {"sq4 d4 fp32 scale=", {"'scale='"}},
      {"sq4 d4 fp32 softcap=1e", {"'softcap=1e'"}},
      {"sq4 d4 fp32 varlen_q", {"'varlen_q'"}},
      {"sq4 d4 fp32 varlen_q=x", {"'varlen_q=x'", "total rows"}},
      {"sq4 d4 fp32 page=", {"'page='", "page=<whole number>"}},
      {"sq4 d4 fp32 splits=two", {"'splits=two'"}},
      {"sq4 d4 fp32 rotary=4", {"'rotary=4'", "rotary=<dim>,half or rotary=<dim>,interleaved"}},
      {"sq4 d4 fp32 rotary=4,halves", {"'rotary=4,halves'"}},
      {"sq4 d4 fp32 =4", {"'=4'"}},
      {"sq4 d4 fp32 =", {"'='"}},
      {"sq4 d4 fp32 lse=1", {"'lse=1'"}},
      {"sq4 d4 fp32 data=ramp", {"'data=ramp'"}},  // a token of cases, not of problems
      {"sq4 d4 fp32 " + std::string(100000, 'x'), {"'xxx", "…"}},
      {std::string("sq4 d4 fp32 \0lse", 16), {"'"}},
  };
  for (const BadString& bad : kBad) {
    Problem p;
    p.seqlen_q = 4321;
    const Status status = parse(bad.text, &p);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.text.substr(0, 80);
    for (const std::string& word : bad.words) {
      EXPECT_NE(status.message().find(word), std::string::npos)
          << bad.text.substr(0, 80) << "\n  wanted: " << word << "\n  got: " << status.message();
    }
    EXPECT_LT(status.message().size(), 400U);
    EXPECT_EQ(p.seqlen_q, 4321) << "a refused string must leave the problem as it was";
  }
  Problem p;
  EXPECT_TRUE(parse("sq4 d4 fp32", &p).ok());
}

}  // namespace
}  // namespace attn::testing
