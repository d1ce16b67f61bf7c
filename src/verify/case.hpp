// One check as one line: the problem string of attn/problem.hpp and, after it, the tokens that say how the
// data is made: `b2 hq8 hk2 sq130 sk300 d64 bf16 causal=br lens_kv=300,0 data=ramp layout=bhsd offset=1
// seed=7`. A case determines every bit of the inputs, on every machine. Grammar: src/verify/README.md. Tested
// in tests/unit-like checks of tests/conformance/case_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attn::verify {

// What Q, K and V hold. Every kind keeps |logits| below 2³⁰ and |V| in the range that rule 13 covers.
enum class Data {
  kNormal,       // standard normal, the default
  kSd8,          // normal, Q scaled so that the logits' standard deviation is about 8
  kSinkKey,      // one key (seeded) whose logit is about 30 above all others
  kDrift,        // the maximum grows by 12 from one 64-key block to the next: the worst for an online softmax
  kSteps,        // … by 30
  kRamp,         // Q = 1, K and V rise linearly with the key: any shifted or dropped key shows
  kLargeQ,       // Q · 30
  kConstant,     // Q = K = 0, V = its value head index + 1
  kLargeV,       // V · 2¹⁰⁰ (fp16: · 2¹²)
  kSmallV,       // V · 2⁻¹⁰⁰ (fp16: · 2⁻⁸)
  kAlternating,  // logits jump between −40 and 40 with the parity of the key, V changes sign with it
  kHuge,         // logits about ±10⁵ (fp16: ±10⁴), all finite
  kLow,          // every logit about −200: a padded key with logit 0 would take all the weight
  kNonFinite,    // normal, with a few Inf and NaN in visible Q, K and V
};

// How Q, K, V, O and LSE lie in memory.
enum class Layout {
  kBshd,            // compact, batch, seqlen, heads, head_dim
  kBhsd,            // compact, batch, heads, seqlen, head_dim
  kInterleaved,     // K and V (and Q, where its batch and length are K's) side by side in one buffer
  kBroadcastBatch,  // K and V with batch stride 0
  kBroadcastHeads,  // K and V with heads stride 0
  kBroadcastKeys,   // K and V with seqlen stride 0
  kBroadcastQ,      // Q with batch, seqlen and heads stride 0: one row for all queries
  kPadded,          // one element between rows: no row but the first is aligned
  kPitch,           // eight elements between rows: every row of 16 bytes' alignment, none adjacent
  kNegative,        // seqlen and heads strides of the inputs negative
  kGaps,            // O and LSE with gaps along every axis
  kUnit,            // bshd, with absurd strides on every axis of size 1
};

// What lies in memory that the problem says must have no influence: keys and rows beyond a sequence's end,
// unused pages and page-table slots, gaps, keys that no query sees.
// ALiBi slopes: of the paper (positive, shared); by batch entry (other ones each, some negative); all
// negative; all zero; large ones of both signs and zero by turns.
enum class Slopes { kPaper, kBatch, kNegative, kZero, kMixed };

// Sinks: normal with deviation 2; ±10⁴ by turns; all −inf (no sink at all); each of them and 0 by turns.
enum class Sinks { kNormal, kHuge, kMinusInf, kMixed };

enum class Poison { kNaN, kInf, kHuge, kZero };

enum class Which : std::uint64_t { kQ = 1, kK = 2, kV = 3 };

// A row of Q, K or V: batch entry, head, position in the sequence (appended keys count on).
struct RowId {
  std::int64_t b = 0;
  std::int64_t h = 0;
  std::int64_t pos = 0;
};

struct Case {
  Problem problem;
  std::vector<std::int64_t> lens_q;   // with varlen_q: length of each sequence
  std::vector<std::int64_t> lens_kv;  // with seqused_kv: its values (before an append); else with varlen_kv
  std::uint64_t seed = 1;
  Data data = Data::kNormal;
  Layout layout = Layout::kBshd;
  std::int64_t offset = 0;        // elements from a 64-byte boundary to the first one of Q, K, V, O and LSE
  std::int64_t shared_pages = 0;  // the first so many pages of each sequence are those of sequence 0
  Slopes slopes = Slopes::kPaper;
  Sinks sinks = Sinks::kNormal;
  Poison poison = Poison::kNaN;

  friend bool operator==(const Case&, const Case&) = default;
};

// Fills what was left open, from the seed: lengths (edges and random), total_q and total_kv (the sum and
// three rows more), num_pages (those needed and two more). Refuses combinations that make no sense, such as a
// broadcast cache that is appended to. Idempotent.
Status complete(Case* c);

[[nodiscard]] std::string to_string(const Case& c);
// Parses and completes. `lens_q=` implies varlen_q; `lens_kv=` implies seqused_kv unless varlen_kv is given.
Status parse(std::string_view line, Case* c);

// Every case of a shape file: one a line, `#` starts a comment, blank lines are skipped. The message of an
// error names the line.
Status parse_shapes(std::string_view text, std::vector<Case>* cases);
Status read_shapes(const std::string& path, std::vector<Case>* cases);

// Keys that each query sees, summed over batch, heads and rows: two matrix products of head_dim_qk and
// head_dim_v multiply-adds each.
[[nodiscard]] double visible_scores(const Case& c);
// 2 · visible_scores · (head_dim_qk + head_dim_v).
[[nodiscard]] double flops(const Case& c);
// All scores, masked ones included.
[[nodiscard]] double total_scores(const Case& c);

// The name of a kind as it stands in a case line, and all of them.
[[nodiscard]] const char* to_string(Data data) noexcept;
[[nodiscard]] const char* to_string(Layout layout) noexcept;
[[nodiscard]] const char* to_string(Poison poison) noexcept;
[[nodiscard]] const char* to_string(Slopes slopes) noexcept;
[[nodiscard]] const char* to_string(Sinks sinks) noexcept;
[[nodiscard]] std::span<const Data> all_data() noexcept;
[[nodiscard]] std::span<const Layout> all_layouts() noexcept;

// What random_case draws from: everything, or what a dense 16-bit kernel of head dims 8 to 256 computes (any
// mask, logits, strides; no packing, lengths, pages, append or splits), with lengths of several tiles.
enum class Space { kAll, kDense };

// A seeded case, small enough for the reference to be quick (at most about max_scores scores).
[[nodiscard]] Case random_case(std::uint64_t seed, double max_scores = 65536.0, Space space = Space::kAll);

}  // namespace attn::verify
