// Problem: what is to be computed, without any pointer. Its meaning is docs/contract.md;
// `validate` (attn/attn.hpp) says whether it is well formed and `support` which backends can do it.
// Tested in tests/unit/problem_test.cpp.
#pragma once

#include <attn/export.hpp>
#include <attn/status.hpp>
#include <attn/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace attn::inline v1 {

// Which query row sits beside the last key. It sets `off` for causal, window, ALiBi and rotary alike:
// query i is at key position i + off. There is no default wherever one of those is used.
enum class Alignment : std::int32_t {
  kUnset = 0,
  kTopLeft = 1,      // off = 0
  kBottomRight = 2,  // off = seqlen_kv − seqlen_q (of the sequence, after an append)
};

enum class RotaryStyle : std::int32_t {
  kHalfSplit = 0,    // pairs (c, c + rotary_dim / 2)
  kInterleaved = 1,  // pairs (2c, 2c + 1)
};

struct Problem {
  DType dtype = DType::kBFloat16;  // of Q, K, V and O
  std::int64_t batch = 1;
  // Dense: the lengths of every sequence. With cu_seqlens: upper bounds of the lengths. With paged K/V
  // or an append: seqlen_kv is the capacity of a sequence (pages × page_size, or the cache's rows).
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_kv = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;  // divides heads_q; query head h reads key/value head h / (heads_q / heads_kv)
  std::int64_t head_dim_qk = 64;
  std::int64_t head_dim_v = 64;

  std::optional<float>
      softmax_scale{};  // unset: 1 / sqrt(head_dim_qk). Magnitude up to 2¹²⁶, 0 and negative too
  bool causal = false;  // query i sees key j iff j ≤ i + off
  Alignment alignment = Alignment::kUnset;
  std::int64_t window_left = -1;   // key j is visible iff j ≥ i + off − window_left; −1: unbounded
  std::int64_t window_right = -1;  // … iff j ≤ i + off + window_right; −1: unbounded, 0 is a real 0
  float softcap = 0.0F;            // s ← softcap · tanh(s / softcap); 0: off
  bool sinks = false;              // Tensors::sinks holds one more plain logit per query head
  bool lse_with_sink = true;       // whether the LSE counts the sink; O always does
  bool alibi = false;              // Tensors::alibi_slopes: s ← s + slope · (j − i − off)

  // Variable lengths: sequences packed along the seqlen axis of a tensor whose batch axis is 1.
  bool varlen_q = false;      // Tensors::cu_seqlens_q; Q and O are (1, total_q, heads_q, ·)
  bool varlen_kv = false;     // Tensors::cu_seqlens_kv; K and V are (1, total_kv, heads_kv, ·)
  std::int64_t total_q = 0;   // rows of the packed Q (only with varlen_q); may exceed what cu_seqlens uses
  std::int64_t total_kv = 0;  // rows of the packed K and V (only with varlen_kv)
  bool seqused_kv = false;    // Tensors::seqused_kv: the first so many keys of each sequence exist

  // Paged K/V: K and V are (num_pages, page_size, heads_kv, ·), Tensors::page_table says which.
  std::int64_t page_size = 0;  // 0: not paged
  std::int64_t num_pages = 0;  // pages in the pool (only with page_size)

  // Append: Tensors::k_new, v_new (batch, seqlen_new, heads_kv, ·) are written to the cache first, at
  // positions seqused_kv … seqused_kv + seqlen_new − 1, and seen by the queries. Needs seqused_kv.
  std::int64_t seqlen_new = 0;  // 0: no append
  std::int64_t rotary_dim = 0;  // 0: no rotation; even, at most head_dim_qk. Applies to Q and k_new.
  RotaryStyle rotary_style = RotaryStyle::kHalfSplit;

  std::int64_t num_splits = 0;   // along the keys; 0: chosen by the plan from the problem alone
  bool want_lse = false;         // Tensors::lse is written
  bool batch_invariant = false;  // a sequence's bits do not depend on what else is in the batch
  bool deterministic = true;     // forward passes always repeat bit for bit; false only permits otherwise

  // The scale in force: softmax_scale, or float(1 / sqrt(head_dim_qk)).
  [[nodiscard]] ATTN_API float scale() const noexcept;
  // Whether an alignment must be given: causal, a window bound, ALiBi or rotary is in use.
  [[nodiscard]] ATTN_API bool needs_alignment() const noexcept;

  friend bool operator==(const Problem&, const Problem&) = default;
};

// The problem as one line, such as "b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=br window=512,0".
// Grammar and every token: docs/problem-string.md. Fields at their defaults are left out, except sizes and
// dtype. parse(to_string(p)) == p for every p that validates.
[[nodiscard]] ATTN_API std::string to_string(const Problem& problem);
// Unknown, repeated or malformed tokens are an error that quotes the token. Parsing does not validate.
ATTN_API Status parse(std::string_view text, Problem* problem);

}  // namespace attn::inline v1
