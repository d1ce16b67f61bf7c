// Where the rows of a call lie: one sequence's lengths and offset, the address of a key row (dense, packed
// or paged), and which keys a query sees. Pure functions on host metadata, shared by the CPU backend and the
// checks; the reference has its own mask predicate on purpose. Tested in tests/unit/geometry_test.cpp.
#pragma once

#include <algorithm>
#include <attn/plan.hpp>
#include <cstdint>

namespace attn::core {

// One sequence of the batch, after an append (seqlen_kv counts the appended keys).
struct Sequence {
  std::int64_t batch = 0;    // index b
  std::int64_t q_batch = 0;  // index along the batch axis of q, o, lse (0 with varlen_q)
  std::int64_t q_begin = 0;  // first row along their seqlen axis
  std::int64_t seqlen_q = 0;
  std::int64_t kv_batch = 0;   // index along the batch axis of k, v (0 with varlen_kv; unused if paged)
  std::int64_t kv_begin = 0;   // first row along their seqlen axis
  std::int64_t seqlen_kv = 0;  // keys that exist
  std::int64_t off = 0;        // query i is at key position i + off; 0 if the alignment is unset
};

// Host metadata only (lengths are read). The metadata must have passed validate().
[[nodiscard]] inline Sequence sequence_of(const Problem& p, const Tensors& t, std::int64_t b) noexcept {
  Sequence s;
  s.batch = b;
  s.q_batch = p.varlen_q ? 0 : b;
  s.q_begin = p.varlen_q ? t.cu_seqlens_q[b] : 0;
  s.seqlen_q = p.varlen_q ? t.cu_seqlens_q[b + 1] - t.cu_seqlens_q[b] : p.seqlen_q;
  s.kv_batch = p.varlen_kv ? 0 : b;
  s.kv_begin = p.varlen_kv ? t.cu_seqlens_kv[b] : 0;
  s.seqlen_kv = p.varlen_kv ? t.cu_seqlens_kv[b + 1] - t.cu_seqlens_kv[b] : p.seqlen_kv;
  if (p.seqused_kv) {
    s.seqlen_kv = t.seqused_kv[b] + p.seqlen_new;
  }
  s.off = p.alignment == Alignment::kBottomRight ? s.seqlen_kv - s.seqlen_q : 0;
  return s;
}

// Element offset of row (key j, key/value head h) of a K or V tensor; head_dim follows at stride 1.
[[nodiscard]] inline std::int64_t kv_row_offset(const Problem& p, const Tensors& t, const TensorView& kv,
                                                const Sequence& s, std::int64_t j, std::int64_t h) noexcept {
  if (p.page_size > 0) {
    const std::int64_t page = t.page_table[s.batch * t.page_table_stride + j / p.page_size];
    return page * kv.strides[0] + (j % p.page_size) * kv.strides[1] + h * kv.strides[2];
  }
  return s.kv_batch * kv.strides[0] + (s.kv_begin + j) * kv.strides[1] + h * kv.strides[2];
}

[[nodiscard]] inline std::int64_t q_row_offset(const TensorView& q, const Sequence& s, std::int64_t i,
                                               std::int64_t h) noexcept {
  return s.q_batch * q.strides[0] + (s.q_begin + i) * q.strides[1] + h * q.strides[2];
}

[[nodiscard]] inline std::int64_t lse_offset(const TensorView& lse, const Sequence& s, std::int64_t i,
                                             std::int64_t h) noexcept {
  return s.q_batch * lse.strides[0] + h * lse.strides[1] + (s.q_begin + i) * lse.strides[2];
}

// Half-open range of keys; empty when begin >= end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] bool empty() const noexcept { return begin >= end; }
};

// The keys that query i sees. Bounds saturate, so that windows near 2⁶³ cannot overflow.
[[nodiscard]] inline KeyRange visible_keys(const Problem& p, const Sequence& s, std::int64_t i) noexcept {
  const std::int64_t position = i + s.off;
  KeyRange range{0, s.seqlen_kv};
  // |position| < 2³³ by validate(); clamping the window to 2⁶⁰ cannot change what it lets through.
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  if (p.window_left >= 0) {
    range.begin = std::max<std::int64_t>(0, position - std::min(p.window_left, kFar));
  }
  std::int64_t right = p.window_right;
  if (p.causal) {
    right = right < 0 ? 0 : std::min<std::int64_t>(right, 0);
  }
  if (right >= 0) {
    range.end = std::clamp<std::int64_t>(position + std::min(right, kFar) + 1, 0, s.seqlen_kv);
  }
  return range;
}

// The keys that some query of rows [i_begin, i_end) sees: where a tile's loop over keys starts and stops.
[[nodiscard]] inline KeyRange visible_keys_of_rows(const Problem& p, const Sequence& s, std::int64_t i_begin,
                                                   std::int64_t i_end) noexcept {
  if (i_begin >= i_end) {
    return {0, 0};
  }
  return {visible_keys(p, s, i_begin).begin, visible_keys(p, s, i_end - 1).end};
}

}  // namespace attn::core
