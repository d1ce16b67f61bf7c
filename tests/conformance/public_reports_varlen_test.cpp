// Variable lengths and empty shapes, from public reports.
#include "support.hpp"

namespace attn::testing {
namespace {

// What one sequence of a packed case computes when it is called alone, with the values of the packed call.
std::vector<float> alone(const verify::Buffers& packed, std::int64_t b, const PlanOptions& plan) {
  const Problem& p = packed.problem();
  const Tensors& t = packed.tensors();
  const core::Sequence s = core::sequence_of(p, t, b);
  Problem one = p;
  one.batch = 1;
  one.varlen_q = one.varlen_kv = one.seqused_kv = false;
  one.total_q = one.total_kv = 0;
  one.seqlen_q = s.seqlen_q;
  one.seqlen_kv = s.seqlen_kv;
  verify::Case c;
  c.problem = one;
  verify::Buffers buffers(c);
  const auto copy = [&](verify::Which which, const TensorView& from, bool q) {
    buffers.rewrite(which, [&](const verify::RowId& id, std::span<float> row) {
      const std::int64_t at =
          q ? core::q_row_offset(from, s, id.pos, id.h) : core::kv_row_offset(p, t, from, s, id.pos, id.h);
      for (std::size_t n = 0; n < row.size(); ++n) {
        row[n] = core::load_element(from.data, p.dtype, at + static_cast<std::int64_t>(n));
      }
    });
  };
  copy(verify::Which::kQ, t.q, true);
  copy(verify::Which::kK, t.k, false);
  copy(verify::Which::kV, t.v, false);
  verify::RunInfo info;
  const Status status = verify::host_runner()(buffers, plan, 0xFF, &info);
  EXPECT_TRUE(status.ok()) << status.message();
  return Results(buffers).all();
}

void expect_close(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (std::isinf(a[n]) || std::isinf(b[n])) {
      ASSERT_EQ(a[n], b[n]) << n;
    } else {
      ASSERT_NEAR(a[n], b[n], tolerance) << n;
    }
  }
}

// Dao-AILab/flash-attention#2562, #1713, PR#1155, #1159, PR#2470; pytorch/pytorch#141218: zero-length
// sequences gave out-of-bounds writes, illegal addresses, hangs; batch 0 was refused; no keys divided by
// zero.
TEST(PublicReports, FlashAttention2562_EmptySequencesAmongLongOnes) {
  verify::CheckOptions options;
  options.max_scores = 1e6;
  options.random_rows = 60;
  for (const char* causal : {"", " causal=br"}) {
    expect_line(
        std::string("b4 hq4 hk1 sq1208 sk3072 d64 bf16 varlen_kv=8192 varlen_q=2048 lse lens_q=0,1208,840,0 "
                    "lens_kv=2538,1742,840,3072") +
            causal,
        options);
    // The wider head dims of the report, at an eighth of its lengths: the slow SIMD levels run this too.
    for (const char* d : {" d128", " d256"}) {
      expect_line(
          std::string(
              "b4 hq4 hk1 sq151 sk384 bf16 varlen_kv=0 lse lens_q=0,151,105,0 lens_kv=317,218,105,384") +
              d + causal,
          options);
    }
  }
}

TEST(PublicReports, FlashAttention2562_EachSequenceIsTheSingleCall) {
  for (const char* type : kDTypes) {
    for (const char* causal : {"", " causal=br"}) {
      const std::string line =
          std::string(
              "b3 hq4 hk1 sq150 sk100 d64 varlen_kv=300 varlen_q=300 lse lens_q=150,0,150 lens_kv=100x3 ") +
          type + causal;
      for (const PlanOptions& plan : all_levels()) {
        SCOPED_TRACE(plan.cpu_level + ": " + line);
        verify::Buffers packed(case_of(line));
        verify::RunInfo info;
        ASSERT_TRUE(verify::host_runner()(packed, plan, 0xFF, &info).ok());
        for (const std::int64_t b : {0, 2}) {
          expect_close(Results(packed).sequence(b), alone(packed, b, plan),
                       std::string(type) == "fp32" ? 4e-6 : 2e-2);
        }
      }
      expect_line(line);
    }
  }
}

TEST(PublicReports, FlashAttention2562_EmptyShapesSucceed) {
  for (const char* type : kDTypes) {
    for (const char* shape :
         {"b0 hq10 hk10 sq3952 sk16 d64", "b2 hq2 hk1 sq5 sk0 d64", "b2 hq2 hk1 sq5 sk0 d64 causal=br",
          "b2 hq2 hk1 sq5 sk0 d64 causal=tl", "b2 hq2 hk1 sq0 sk7 d64", "b2 hq2 hk1 sq0 sk7 d64 causal=br",
          "b2 hq2 hk1 sq0 sk0 d64", "b2 hq2 hk1 sq4 sk4 d64 varlen_q=0 varlen_kv=0 lens_q=0,0 lens_kv=0,0",
          "b2 hq2 hk1 sq4 sk4 d64 varlen_q=3 varlen_kv=3 lens_q=0,0 lens_kv=0,0",
          "b2 hq2 hk1 sq4 sk4 d64 causal=br lens_q=3,1 lens_kv=0,0",
          "b2 hq2 hk1 sq4 sk64 d64 page=16 lens_kv=0,0", "b0 hq2 hk1 sq4 sk64 d64 page=16 seqused",
          "b0 hq2 hk1 sq4 sk64 d64 varlen_q=0 varlen_kv=0", "b2 hq2 hk1 sq5 sk0 d64 splits=8"}) {
      expect_line(std::string(shape) + " lse " + type);
    }
  }
  // No heads, no channels: an error that names the argument.
  for (const auto& [line, words] : {std::pair{"hq0 hk0 sq1 sk1 d64 fp32", "heads_q is 0"},
                                    std::pair{"hq1 hk1 sq1 sk1 d0 fp32", "head_dim_qk is 0"},
                                    std::pair{"hq1 hk1 sq1 sk1 d8 dv0 fp32", "head_dim_v is 0"}}) {
    Problem p;
    ASSERT_TRUE(parse(line, &p).ok());
    Plan plan;
    const Status status = make_plan(p, cpu_plan(), &plan);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
}

// sgl-project/sglang PR#15757; sgl-project/sgl-flash-attn PR#47; pytorch/pytorch PR#186786;
// Dao-AILab/flash-attention#1773: packed buffers longer than cu_seqlens says: NaN in the slack rows spread.
TEST(PublicReports, Sglang15757_SlackRowsHaveNoInfluence) {
  for (const char* type : kDTypes) {
    const std::string tail = std::string(" causal=br lse lens_q=21 lens_kv=21 ") + type;
    const std::string padded = "b1 hq16 hk1 sq21 sk21 d128 varlen_q=24 varlen_kv=24" + tail;
    expect_line(
        padded);  // slack is NaN, and the judge sees whether rows 21 to 23 of O and LSE stay unwritten
    const std::string exact = "b1 hq16 hk1 sq21 sk21 d128 varlen_q=21 varlen_kv=21" + tail;
    // Bounds larger than needed change nothing but speed.
    const std::string bound = "b1 hq16 hk1 sq500 sk77 d128 varlen_q=24 varlen_kv=24" + tail;
    expect_line(bound);
    for (const PlanOptions& plan : all_levels()) {
      EXPECT_TRUE(same_bits(values_of(padded, plan), values_of(exact, plan)))
          << plan.cpu_level << " " << type;
    }
  }
}

struct BadOffsets {
  const char* what;
  std::vector<std::int32_t> cu;
  const char* words;
};

TEST(PublicReports, Sglang15757_MalformedOffsetsAreRefused) {
  const BadOffsets kBad[] = {
      {"first entry is not 0", {1, 10, 21}, "[0] is 1; allowed: 0"},
      {"last entry beyond the rows", {0, 10, 25}, "[2] is 25; allowed: at most the packed tensor's rows, 24"},
      {"decreasing", {0, 15, 10}, "[2] is 10; allowed: at least the entry before it, 15"},
      {"one length beyond the bound", {0, 2, 24}, "length of sequence 1 in "},
      {"negative", {0, -5, 10}, "[1] is -5; allowed: at least the entry before it, 0"},
  };
  for (const char* name : {"cu_seqlens_q", "cu_seqlens_kv"}) {
    for (const BadOffsets& bad : kBad) {
      verify::Buffers buffers(
          case_of("b2 hq2 hk1 sq15 sk15 d16 bf16 varlen_q=24 varlen_kv=24 lse lens_q=10,11 lens_kv=10,11"));
      verify::Block& block = *std::find_if(buffers.blocks().begin(), buffers.blocks().end(),
                                           [&](const verify::Block& b) { return b.name() == name; });
      std::memcpy(block.payload(), bad.cu.data(), 12);
      const std::vector<std::byte> before(buffers.find("o")->base(),
                                          buffers.find("o")->base() + buffers.find("o")->bytes());
      verify::RunInfo info;
      const Status status = verify::host_runner()(buffers, cpu_plan(), 0xFF, &info);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << ": " << bad.what;
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(bad.words), std::string::npos) << status.message();
      EXPECT_EQ(std::memcmp(before.data(), buffers.find("o")->base(), before.size()), 0)
          << "a refused call must write nothing";
    }
  }
}

}  // namespace
}  // namespace attn::testing
