// Which keys a query sees, against the predicate of the contract key by key, and where rows lie.
#include "core/geometry.hpp"

#include <gtest/gtest.h>

namespace {

using attn::Alignment;
using attn::Problem;
using attn::core::KeyRange;
using attn::core::Sequence;

bool sees(const Problem& p, const Sequence& s, std::int64_t i, std::int64_t j) {
  if (p.causal && j > i + s.off) return false;
  if (p.window_left >= 0 && j < i + s.off - p.window_left) return false;
  return p.window_right < 0 || j <= i + s.off + p.window_right;
}

TEST(Geometry, VisibleKeysAreThoseOfThePredicate) {
  for (std::int64_t seqlen_q = 1; seqlen_q <= 7; ++seqlen_q) {
    for (std::int64_t seqlen_kv = 0; seqlen_kv <= 7; ++seqlen_kv) {
      for (std::int64_t left = -1; left <= 4; ++left) {
        for (std::int64_t right = -1; right <= 4; ++right) {
          for (int variant = 0; variant < 4; ++variant) {
            Problem p;
            p.causal = (variant & 1) != 0;
            p.window_left = left;
            p.window_right = right;
            Sequence s;
            s.seqlen_q = seqlen_q;
            s.seqlen_kv = seqlen_kv;
            s.off = (variant & 2) != 0 ? seqlen_kv - seqlen_q : 0;
            std::int64_t first = seqlen_kv;
            std::int64_t last = -1;
            for (std::int64_t i = 0; i < seqlen_q; ++i) {
              const KeyRange range = attn::core::visible_keys(p, s, i);
              for (std::int64_t j = 0; j < seqlen_kv; ++j) {
                const bool in = j >= range.begin && j < range.end;
                ASSERT_EQ(in, sees(p, s, i, j)) << "i " << i << " j " << j << " " << to_string(p);
                if (in) {
                  first = std::min(first, j);
                  last = std::max(last, j);
                }
              }
            }
            const KeyRange all = attn::core::visible_keys_of_rows(p, s, 0, seqlen_q);
            if (last >= 0) {
              ASSERT_LE(all.begin, first);
              ASSERT_GE(all.end, last + 1);
            }
          }
        }
      }
    }
  }
}

TEST(Geometry, WidestWindowsDoNotOverflow) {
  Problem p;
  p.window_left = INT64_MAX;
  p.window_right = INT64_MAX;
  Sequence s;
  s.seqlen_q = 2147483647;
  s.seqlen_kv = 2147483647;
  const KeyRange range = attn::core::visible_keys(p, s, 2147483646);
  EXPECT_EQ(range.begin, 0);
  EXPECT_EQ(range.end, 2147483647);
}

TEST(Geometry, SequencesOfEveryKind) {
  const std::int32_t cu_q[] = {0, 2, 2, 5};
  const std::int32_t cu_kv[] = {0, 4, 10, 11};
  const std::int32_t used[] = {3, 0, 1};
  Problem p;
  p.batch = 3;
  p.varlen_q = true;
  p.varlen_kv = true;
  p.alignment = Alignment::kBottomRight;
  attn::Tensors t;
  t.cu_seqlens_q = cu_q;
  t.cu_seqlens_kv = cu_kv;
  Sequence s = attn::core::sequence_of(p, t, 2);
  EXPECT_EQ(s.q_batch, 0);
  EXPECT_EQ(s.q_begin, 2);
  EXPECT_EQ(s.seqlen_q, 3);
  EXPECT_EQ(s.kv_begin, 10);
  EXPECT_EQ(s.seqlen_kv, 1);
  EXPECT_EQ(s.off, -2);
  p.seqused_kv = true;
  t.seqused_kv = used;
  EXPECT_EQ(attn::core::sequence_of(p, t, 0).seqlen_kv, 3);
  EXPECT_EQ(attn::core::sequence_of(p, t, 1).seqlen_kv, 0);
  p.varlen_kv = false;
  p.seqlen_kv = 9;
  p.seqlen_new = 2;
  s = attn::core::sequence_of(p, t, 0);
  EXPECT_EQ(s.kv_batch, 0);
  EXPECT_EQ(s.seqlen_kv, 5);
  EXPECT_EQ(s.off, 3);
}

TEST(Geometry, PagedRowsGoThroughTheTable) {
  const std::int32_t table[] = {7, 1, 0, 4, 4, 2};
  Problem p;
  p.batch = 2;
  p.page_size = 3;
  p.num_pages = 8;
  p.seqlen_kv = 9;
  attn::Tensors t;
  t.page_table = table;
  t.page_table_stride = 3;
  attn::TensorView k;
  k.strides = {1000, 100, 10, 1};
  const Sequence s = attn::core::sequence_of(p, t, 1);
  EXPECT_EQ(attn::core::kv_row_offset(p, t, k, s, 0, 2), 4020);
  EXPECT_EQ(attn::core::kv_row_offset(p, t, k, s, 5, 0), 4200);
  EXPECT_EQ(attn::core::kv_row_offset(p, t, k, s, 8, 1), 2210);
}

}  // namespace
