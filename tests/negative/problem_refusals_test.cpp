// Problems that are not well formed: one mutation of a good problem a row, with the words that its message
// must hold.
#include "refusal.hpp"

namespace attn::testing {
namespace {

struct BadProblem {
  const char* name;
  const char* base;  // a good problem
  void (*mutate)(Problem& p);
  std::vector<std::string> words;  // argument and value; what is allowed
};

constexpr const char* kDense = "b2 hq4 hk2 sq9 sk30 d16 fp32";
constexpr const char* kCausal = "b2 hq4 hk2 sq9 sk30 d16 fp32 causal=br";
constexpr const char* kPacked = "b2 hq4 hk2 sq9 sk30 d16 fp32 varlen_q=10 varlen_kv=40";
constexpr const char* kPaged = "b2 hq4 hk2 sq9 sk32 d16 fp32 page=16 pages=4 seqused";
constexpr const char* kAppend = "b2 hq4 hk2 sq3 sk30 d16 fp32 seqused new=3 causal=br rotary=16,half";

const std::int64_t kTooLong = std::int64_t{1} << 31;

const std::vector<BadProblem>& bad_problems() {
  static const std::vector<BadProblem> kAll = {
      {"Dtype",
       kDense,
       [](Problem& p) { p.dtype = static_cast<DType>(3); },
       {"dtype is 3", "0 (fp32), 1 (fp16), 2 (bf16)"}},
      {"DtypeNegative", kDense, [](Problem& p) { p.dtype = static_cast<DType>(-1); }, {"dtype is -1"}},
      {"Alignment",
       kCausal,
       [](Problem& p) { p.alignment = static_cast<Alignment>(3); },
       {"alignment is 3", "1 (top-left)"}},
      {"RotaryStyle",
       kAppend,
       [](Problem& p) { p.rotary_style = static_cast<RotaryStyle>(2); },
       {"rotary_style is 2", "1 (interleaved)"}},
      {"BatchNegative", kDense, [](Problem& p) { p.batch = -1; }, {"batch is -1", "0 to 2147483647"}},
      {"BatchTooLarge",
       kDense,
       [](Problem& p) { p.batch = kTooLong; },
       {"batch is 2147483648", "0 to 2147483647"}},
      {"SeqlenQNegative", kDense, [](Problem& p) { p.seqlen_q = -5; }, {"seqlen_q is -5", "0 to 2147483647"}},
      {"SeqlenQTooLarge", kDense, [](Problem& p) { p.seqlen_q = kTooLong; }, {"seqlen_q is 2147483648"}},
      {"SeqlenKvNegative",
       kDense,
       [](Problem& p) { p.seqlen_kv = INT64_MIN; },
       {"seqlen_kv is -9223372036854775808"}},
      {"SeqlenKvTooLarge",
       kDense,
       [](Problem& p) { p.seqlen_kv = INT64_MAX; },
       {"seqlen_kv is 9223372036854775807"}},
      {"HeadsQZero", kDense, [](Problem& p) { p.heads_q = 0; }, {"heads_q is 0", "1 to 2147483647"}},
      {"HeadsQNegative", kDense, [](Problem& p) { p.heads_q = -4; }, {"heads_q is -4"}},
      {"HeadsKvZero", kDense, [](Problem& p) { p.heads_kv = 0; }, {"heads_kv is 0", "1 to 2147483647"}},
      {"HeadsKvNegative", kDense, [](Problem& p) { p.heads_kv = -2; }, {"heads_kv is -2"}},
      {"HeadsNoMultiple",
       kDense,
       [](Problem& p) { p.heads_q = 5; },
       {"heads_q is 5", "a multiple of heads_kv, which is 2"}},
      {"HeadsFewerThanKv",
       kDense,
       [](Problem& p) { p.heads_q = 1; },
       {"heads_q is 1", "a multiple of heads_kv"}},
      {"HeadDimZero", kDense, [](Problem& p) { p.head_dim_qk = 0; }, {"head_dim_qk is 0", "1 to "}},
      {"HeadDimNegative", kDense, [](Problem& p) { p.head_dim_qk = -64; }, {"head_dim_qk is -64"}},
      {"HeadDimTooLarge",
       kDense,
       [](Problem& p) { p.head_dim_qk = INT64_MAX; },
       {"head_dim_qk is 9223372036854775807"}},
      {"HeadDimVZero", kDense, [](Problem& p) { p.head_dim_v = 0; }, {"head_dim_v is 0", "1 to "}},
      {"HeadDimVNegative", kDense, [](Problem& p) { p.head_dim_v = -1; }, {"head_dim_v is -1"}},
      {"SplitsNegative", kDense, [](Problem& p) { p.num_splits = -1; }, {"num_splits is -1", "0 to "}},
      {"SplitsTooMany",
       kDense,
       [](Problem& p) { p.num_splits = 1 << 20; },
       {"num_splits is 1048576", "0 to "}},
      {"ScaleNaN",
       kDense,
       [](Problem& p) { p.softmax_scale = std::nanf(""); },
       {"softmax_scale is ", "nan", "a finite number"}},
      {"ScaleInf",
       kDense,
       [](Problem& p) { p.softmax_scale = -HUGE_VALF; },
       {"softmax_scale is -inf", "up to 2^126"}},
      {"SoftcapNegative",
       kDense,
       [](Problem& p) { p.softcap = -1; },
       {"softcap is -1", "0 (off) or a finite number above 0"}},
      {"SoftcapNaN", kDense, [](Problem& p) { p.softcap = std::nanf(""); }, {"softcap is ", "nan"}},
      {"SoftcapInf", kDense, [](Problem& p) { p.softcap = HUGE_VALF; }, {"softcap is inf"}},
      {"WindowLeft", kCausal, [](Problem& p) { p.window_left = -2; }, {"window_left is -2", "-1 to "}},
      {"WindowRight",
       kCausal,
       [](Problem& p) { p.window_right = INT64_MIN; },
       {"window_right is -9223372036854775808"}},
      {"CausalUnaligned",
       kCausal,
       [](Problem& p) { p.alignment = Alignment::kUnset; },
       {"alignment is unset", "top-left or bottom-right", "causal"}},
      {"WindowUnaligned", kDense, [](Problem& p) { p.window_left = 3; }, {"alignment is unset", "a window"}},
      {"RightWindowUnaligned",
       kDense,
       [](Problem& p) { p.window_right = 0; },
       {"alignment is unset", "a window"}},
      {"AlibiUnaligned", kDense, [](Problem& p) { p.alibi = true; }, {"alignment is unset", "ALiBi"}},
      {"RotaryUnaligned",
       kAppend,
       [](Problem& p) {
         p.causal = false;
         p.alignment = Alignment::kUnset;
       },
       {"alignment is unset", "rotary"}},
      {"TotalQWithoutVarlen", kDense, [](Problem& p) { p.total_q = 9; }, {"total_q is 9", "0 to 0"}},
      {"TotalKvWithoutVarlen", kDense, [](Problem& p) { p.total_kv = 9; }, {"total_kv is 9", "0 to 0"}},
      {"TotalQNegative", kPacked, [](Problem& p) { p.total_q = -1; }, {"total_q is -1"}},
      {"TotalKvTooLarge", kPacked, [](Problem& p) { p.total_kv = kTooLong; }, {"total_kv is 2147483648"}},
      {"VarlenKvPaged",
       kPaged,
       [](Problem& p) { p.varlen_kv = true; },
       {"varlen_kv is true", "page_size 16", "seqused_kv"}},
      {"VarlenKvAppend",
       kAppend,
       [](Problem& p) {
         p.varlen_kv = true;
         p.total_kv = 60;
       },
       {"varlen_kv is true", "seqlen_new 3"}},
      {"PageSizeNegative", kPaged, [](Problem& p) { p.page_size = -16; }, {"page_size is -16", "0 to "}},
      {"PagesWithoutPaging", kDense, [](Problem& p) { p.num_pages = 4; }, {"num_pages is 4", "0 to 0"}},
      {"PagesNegative", kPaged, [](Problem& p) { p.num_pages = -1; }, {"num_pages is -1"}},
      {"NewNegative", kAppend, [](Problem& p) { p.seqlen_new = -1; }, {"seqlen_new is -1", "0 to 30"}},
      {"NewBeyondCapacity", kAppend, [](Problem& p) { p.seqlen_new = 31; }, {"seqlen_new is 31", "0 to 30"}},
      {"NewWithoutSeqused",
       kAppend,
       [](Problem& p) { p.seqused_kv = false; },
       {"seqused_kv is false", "true with an append"}},
      {"RotaryNegative", kAppend, [](Problem& p) { p.rotary_dim = -2; }, {"rotary_dim is -2", "0 to 16"}},
      {"RotaryTooWide", kAppend, [](Problem& p) { p.rotary_dim = 18; }, {"rotary_dim is 18", "0 to 16"}},
      {"RotaryOdd", kAppend, [](Problem& p) { p.rotary_dim = 7; }, {"rotary_dim is 7", "an even number"}},
      {"RotaryWithoutAppend",
       kCausal,
       [](Problem& p) { p.rotary_dim = 8; },
       {"rotary_dim is 8", "0 without an append"}},
  };
  return kAll;
}

class BadProblems : public ::testing::TestWithParam<std::size_t> {};

TEST_P(BadProblems, AreRefusedEverywhere) {
  const BadProblem& bad = bad_problems()[GetParam()];
  Problem good;
  ASSERT_TRUE(parse(bad.base, &good).ok());
  ASSERT_TRUE(validate(good).ok()) << "the mutation must be the only thing wrong";
  Problem p = good;
  bad.mutate(p);

  expect_refusal(validate(p), bad.words);
  expect_refusal(validate(p, Tensors{}, true), bad.words);

  // make_plan refuses the same way and leaves the plan that it was given.
  Plan plan;
  ASSERT_TRUE(make_plan(good, cpu_plan(), &plan).ok());
  for (const Backend backend : {Backend::kAuto, Backend::kCpu}) {
    PlanOptions options;
    options.backend = backend;
    expect_refusal(make_plan(p, options, &plan), bad.words);
    EXPECT_TRUE(plan.valid());
    EXPECT_EQ(plan.problem(), good);
  }
  for (const BackendSupport& entry : support(p)) {
    EXPECT_FALSE(entry.supported);
    EXPECT_FALSE(entry.reason.empty());
  }
  EXPECT_TRUE(make_plan(good, cpu_plan(), &plan).ok()) << "the next good call works";
}
INSTANTIATE_TEST_SUITE_P(All, BadProblems, ::testing::Range<std::size_t>(0, bad_problems().size()),
                         [](const auto& param) { return std::string(bad_problems()[param.param].name); });

}  // namespace
}  // namespace attn::testing
