// The peer rule of rule 13: the largest error is at most twice that of a plain implementation of the same
// precision. The plain one is written here, with no tiles: fp32 logits, softmax over the whole row, weights
// rounded to the dtype, fp32 sums, the result rounded once.
#include <algorithm>

#include "reference/reference.hpp"
#include "support.hpp"

namespace attn::testing {
namespace {

struct Errors {
  double plain = 0;
  double backend = 0;
};

std::vector<float> plain_row(const Problem& p, const Tensors& t, const core::Sequence& s, std::int64_t h,
                             std::int64_t i) {
  const core::KeyRange keys = core::visible_keys(p, s, i);
  const std::int64_t kv_head = h / (p.heads_q / p.heads_kv);
  const std::int64_t q_at = core::q_row_offset(t.q, s, i, h);
  std::vector<float> logits;
  float row_max = -HUGE_VALF;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::int64_t k_at = core::kv_row_offset(p, t, t.k, s, j, kv_head);
    float dot = 0;
    for (std::int64_t c = 0; c < p.head_dim_qk; ++c) {
      dot +=
          core::load_element(t.q.data, p.dtype, q_at + c) * core::load_element(t.k.data, p.dtype, k_at + c);
    }
    logits.push_back(dot * p.scale());
    row_max = std::max(row_max, logits.back());
  }
  std::vector<float> sums(static_cast<std::size_t>(p.head_dim_v));
  float total = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const float weight = std::exp(logits[static_cast<std::size_t>(j - keys.begin)] - row_max);
    total += weight;
    const float rounded = core::round_to(p.dtype, weight);
    const std::int64_t v_at = core::kv_row_offset(p, t, t.v, s, j, kv_head);
    for (std::size_t c = 0; c < sums.size(); ++c) {
      sums[c] += rounded * core::load_element(t.v.data, p.dtype, v_at + static_cast<std::int64_t>(c));
    }
  }
  for (float& x : sums) {
    x = keys.empty() ? 0.0F : core::round_to(p.dtype, x / total);
  }
  return sums;
}

Errors errors_of(const std::string& line, const PlanOptions& plan) {
  verify::Buffers buffers(case_of(line));
  verify::RunInfo info;
  EXPECT_TRUE(verify::host_runner()(buffers, plan, 0xFF, &info).ok());
  const Problem& p = buffers.problem();
  const Tensors& t = buffers.tensors();
  const Results results(buffers);
  std::vector<double> want(static_cast<std::size_t>(p.head_dim_v));
  Errors errors;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, t, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        reference::forward_row(p, t, b, h, i, want.data());
        const std::vector<float> plain = plain_row(p, t, s, h, i);
        for (std::size_t c = 0; c < want.size(); ++c) {
          errors.plain = std::max(errors.plain, std::abs(static_cast<double>(plain[c]) - want[c]));
          errors.backend =
              std::max(errors.backend, std::abs(results.o(b, h, i, static_cast<std::int64_t>(c)) - want[c]));
        }
      }
    }
  }
  return errors;
}

class PeerRule : public ::testing::TestWithParam<const char*> {};

TEST_P(PeerRule, ErrorIsAtMostTwiceThatOfAPlainImplementation) {
  for (const PlanOptions& plan : all_levels()) {
    for (const char* shape :
         {"hq2 hk1 sq65 sk300 d64", "hq2 hk2 sq130 sk130 d128 causal=br", "hq2 hk1 sq3 sk2000 d64",
          "hq2 hk1 sq2 sk2000 d64 splits=5", "hq1 hk1 sq33 sk200 d72 align=br window=60,0"}) {
      for (const char* data :
           {"", " data=sd8", " data=drift", " data=sinkkey", " data=largev", " data=alt"}) {
        const std::string line = std::string(shape) + data + " " + GetParam();
        const Errors errors = errors_of(line, plan);
        EXPECT_GT(errors.plain, 0.0) << "the plain implementation cannot be exact on " << line;
        EXPECT_LE(errors.backend, 2 * errors.plain) << plan.cpu_level << ": " << line;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, PeerRule, ::testing::ValuesIn(kDTypes));

}  // namespace
}  // namespace attn::testing
