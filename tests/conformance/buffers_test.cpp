// The memory of a case: layouts and packing change no value, poison lies everywhere it should, guards see
// writes.
#include <set>

#include "support.hpp"

namespace attn::testing {
namespace {

std::vector<float> logical_q(const verify::Buffers& buffers) {
  const Problem& p = buffers.problem();
  const Tensors& t = buffers.tensors();
  std::vector<float> values;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, t, b);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < p.heads_q; ++h) {
        for (std::int64_t c = 0; c < p.head_dim_qk; ++c) {
          values.push_back(core::load_element(t.q.data, p.dtype, core::q_row_offset(t.q, s, i, h) + c));
        }
      }
    }
  }
  return values;
}

std::vector<float> logical_kv(const verify::Buffers& buffers, bool v) {
  const Problem& p = buffers.problem();
  const Tensors& t = buffers.tensors();
  const TensorView& view = v ? t.v : t.k;
  std::vector<float> values;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, t, b);
    for (std::int64_t j = 0; j < s.seqlen_kv; ++j) {
      for (std::int64_t h = 0; h < p.heads_kv; ++h) {
        for (std::int64_t c = 0; c < view.shape[3]; ++c) {
          values.push_back(
              core::load_element(view.data, p.dtype, core::kv_row_offset(p, t, view, s, j, h) + c));
        }
      }
    }
  }
  return values;
}

TEST(Buffers, LayoutsAndPagesHoldTheSameValues) {
  const std::string base = "b3 hq4 hk2 sq33 sk70 d24 bf16 lens_kv=70,1,33 seed=9";
  const verify::Buffers plain(case_of(base));
  const auto q = logical_q(plain);
  const auto k = logical_kv(plain, false);
  const auto v = logical_kv(plain, true);
  EXPECT_EQ(std::set<float>(q.begin(), q.end()).count(0.0F), 0U);
  for (const char* extra :
       {" layout=bhsd", " layout=interleaved", " layout=padded offset=3", " layout=negative", " layout=gaps",
        " layout=unit", " page=16", " page=7 layout=bhsd", " page=1"}) {
    const verify::Buffers other(case_of(base + extra));
    EXPECT_TRUE(same_bits(logical_q(other), q)) << extra;
    EXPECT_TRUE(same_bits(logical_kv(other, false), k)) << extra;
    EXPECT_TRUE(same_bits(logical_kv(other, true), v)) << extra;
  }
}

TEST(Buffers, SeedsDiffer) {
  const verify::Buffers a(case_of("sq33 d24 fp32 seed=1"));
  const verify::Buffers b(case_of("sq33 d24 fp32 seed=2"));
  EXPECT_FALSE(same_bits(logical_q(a), logical_q(b)));
}

// Counts the values of a payload that are NaN and not NaN.
std::pair<std::int64_t, std::int64_t> count_nan(const verify::Buffers& buffers, const char* name) {
  const verify::Block& block = *buffers.find(name);
  const DType dtype = buffers.problem().dtype;
  std::int64_t nan = 0;
  const auto elements = static_cast<std::int64_t>(block.payload_bytes() / size_of(dtype));
  for (std::int64_t n = 0; n < elements; ++n) {
    nan += std::isnan(core::load_element(block.payload(), dtype, n));
  }
  return {nan, elements - nan};
}

TEST(Buffers, WhatMustNotMatterIsPoison) {
  // 10 of 30 keys exist, 3 of 5 slack rows of Q are nobody's, one element between rows is a gap.
  const verify::Buffers used(case_of("b2 sq4 sk30 d8 fp16 lens_kv=10,0"));
  EXPECT_EQ(count_nan(used, "k"), std::make_pair(std::int64_t{50 * 8}, std::int64_t{10 * 8}));
  const verify::Buffers packed(case_of("b2 sq4 sk30 d8 fp32 lens_q=4,1"));
  EXPECT_EQ(count_nan(packed, "q"), std::make_pair(std::int64_t{3 * 8}, std::int64_t{5 * 8}));
  // A window that reaches 2 keys to the left of 4 rows at the end of 30: 6 keys are seen by somebody.
  const verify::Buffers window(case_of("b1 sq4 sk30 d8 bf16 causal=br window=2,-1"));
  EXPECT_EQ(count_nan(window, "v"), std::make_pair(std::int64_t{24 * 8}, std::int64_t{6 * 8}));
  // 3 pages of 4 slots in use by 10 keys, two spare ones.
  const verify::Buffers paged(case_of("b1 sq4 sk30 d8 bf16 page=4 lens_kv=10"));
  EXPECT_EQ(count_nan(paged, "k"), std::make_pair(std::int64_t{10 * 8}, std::int64_t{10 * 8}));
  // Cache rows to be appended to are poison before the call.
  const verify::Buffers append(case_of("b1 sq4 sk30 d8 bf16 new=5 lens_kv=10"));
  EXPECT_EQ(count_nan(append, "k"), std::make_pair(std::int64_t{20 * 8}, std::int64_t{10 * 8}));
  EXPECT_EQ(count_nan(append, "k_new"), std::make_pair(std::int64_t{0}, std::int64_t{5 * 8}));
}

TEST(Buffers, UnusedPageTableEntriesNameNoPage) {
  const verify::Buffers buffers(case_of("b2 sq1 sk64 d8 fp32 page=16 lens_kv=17,0 shared=1"));
  const Tensors& t = buffers.tensors();
  ASSERT_EQ(t.page_table_stride, 5);
  for (std::int64_t n = 0; n < 10; ++n) {
    const bool in_use = n < 2;
    EXPECT_EQ(t.page_table[n] >= 0 && t.page_table[n] < buffers.problem().num_pages, in_use) << n;
  }
}

TEST(Buffers, SharedPagesAreShared) {
  const verify::Buffers buffers(case_of("b2 sq1 sk64 d8 fp32 page=16 lens_kv=64,50 shared=2"));
  const Tensors& t = buffers.tensors();
  EXPECT_EQ(t.page_table[0], t.page_table[t.page_table_stride]);
  EXPECT_EQ(t.page_table[1], t.page_table[t.page_table_stride + 1]);
  EXPECT_NE(t.page_table[2], t.page_table[t.page_table_stride + 2]);
}

TEST(Buffers, OffsetsAndPitchesAreWhatTheLayoutSays) {
  const verify::Buffers offset(case_of("b1 sq4 d8 bf16 offset=3"));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(offset.tensors().q.data) % 64, 6U);
  const verify::Buffers padded(case_of("b1 hq2 hk2 sq4 d8 bf16 layout=padded"));
  EXPECT_EQ(padded.tensors().k.strides[2], 9);
  const verify::Buffers interleaved(case_of("b1 hq4 hk2 sq4 d8 bf16 layout=interleaved"));
  EXPECT_EQ(interleaved.tensors().q.strides[1], (4 + 2 + 2) * 8);
  EXPECT_NE(interleaved.find("qkv"), nullptr);
  EXPECT_EQ(interleaved.find("k"), nullptr);
  const verify::Buffers negative(case_of("b1 hq2 hk2 sq4 d8 bf16 layout=negative"));
  EXPECT_LT(negative.tensors().k.strides[1], 0);
  const verify::Buffers keys(case_of("b1 hq2 hk2 sq4 d8 bf16 layout=bcast_keys"));
  EXPECT_EQ(keys.tensors().v.strides[1], 0);
}

TEST(Buffers, GuardsSeeAWriteOnEitherSide) {
  verify::Buffers buffers(case_of("b1 sq4 d8 bf16 lse"));
  for (verify::Block& block : buffers.blocks()) {
    ASSERT_FALSE(block.broken_guard().has_value());
    for (const std::int64_t at :
         {std::int64_t{-1}, -static_cast<std::int64_t>(verify::kGuardBytes),
          static_cast<std::int64_t>(block.payload_bytes()),
          static_cast<std::int64_t>(block.payload_bytes() + verify::kGuardBytes - 1)}) {
      std::byte& byte = block.payload()[at];
      byte ^= std::byte{1};
      EXPECT_TRUE(block.broken_guard().has_value()) << block.name() << " " << at;
      byte ^= std::byte{1};
    }
  }
}

TEST(Buffers, ResetRestoresOutputsAndCaches) {
  verify::Buffers buffers(case_of("b1 sq4 sk9 d8 bf16 new=2 lens_kv=3 lse"));
  const auto before = buffers.pristine(*buffers.find("k"));
  for (const char* name : {"o", "lse", "k", "v"}) {
    std::memset(buffers.find(name)->payload(), 0x33, buffers.find(name)->payload_bytes());
  }
  buffers.reset();
  EXPECT_EQ(std::memcmp(buffers.find("k")->payload(), before.data(), before.size()), 0);
  std::uint16_t bits = 0;
  std::memcpy(&bits, buffers.find("o")->payload(), 2);
  EXPECT_EQ(bits, verify::Buffers::poison_bits(DType::kBFloat16));
}

TEST(Buffers, TooFewPagesAreRefused) {
  EXPECT_THROW(verify::Buffers(case_of("b2 sq1 sk64 d8 fp32 page=16 pages=3 lens_kv=64,1")),
               std::invalid_argument);
}

}  // namespace
}  // namespace attn::testing
