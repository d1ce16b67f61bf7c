// What the CPU backend decides before a run: level, tiles, splits, threads and the layout of the workspace.
// Nothing here depends on the number of threads but the layout and the cut into tasks, so results do not
// either. Tested in tests/unit/cpu_plan_test.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/geometry.hpp"
#include "core/plan_impl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/levels.hpp"
#include "cpu/threads.hpp"

namespace attn::cpu {

// Query rows are packed: row r of a sequence and key/value head is query r / group of query head
// head · group + r % group, so that the query heads of one key/value head share its K and V tiles.
// A sequence of at most so many rows takes the direct path, which reads K and V in place. (Measured on
// Sapphire Rapids, d = 128, 8192 keys: at 8 rows bf16 takes 0.41 ms against 0.55 ms packed, fp32 0.56 against
// 0.65.) The choice follows from the sequence's own rows alone, as batch-invariance asks.
inline constexpr std::int64_t kDirectRows = 2 * kMaxDirectRows;
// Splits chosen by the plan are for sequences of at most so many rows: with more there is work for many
// threads without them.
inline constexpr std::int64_t kSplitRows = 64;

// Key/value heads that a direct task takes together, tile by tile: with a key's heads side by side in memory,
// a page then serves all of them while it is at hand. Eight rows of 512 bytes fill a page of 4 KiB.
inline constexpr std::int64_t kMaxHeadsTogether = 8;

// Offsets in bytes of the parts of one worker's scratch.
struct ScratchLayout {
  // Of each head that is taken together with others, head_bytes apart.
  std::size_t q = 0;
  std::size_t o = 0;
  std::size_t o_low = 0;
  std::size_t rows = 0;  // RowState of each row
  std::size_t row_max = 0;
  std::size_t row_sum = 0;
  std::size_t row_sum_low = 0;
  std::size_t head_bytes = 0;
  // Shared.
  std::size_t q_row = 0;
  std::size_t k = 0;
  std::size_t v = 0;
  std::size_t v_small = 0;  // where there is KernelTable::split_v, as the next two
  std::size_t o_small = 0;
  std::size_t o_small_low = 0;
  std::size_t stage = 0;
  std::size_t s = 0;
  std::size_t k_rows = 0;  // pointers
  std::size_t v_rows = 0;
  std::size_t bytes = 0;  // of all, a multiple of 64
};

// How the keys of one sequence are split.
struct Split {
  std::int64_t first_tile = 0;
  std::int64_t num_tiles = 0;
  std::int64_t tiles_per_split = 0;  // at least 1
  std::int64_t count = 1;            // splits that have a partial result; 1: written to O straight away
};

enum class SplitRule {
  kNone,       // one pass over the keys
  kRequested,  // Problem::num_splits parts of every sequence
  kAuto,       // num_splits parts of every sequence, chosen from the problem
  kFixedKeys,  // batch-invariant: parts of a fixed number of keys, for sequences of few rows
};

struct CpuPlan : BackendPlan {
  const KernelTable* kernels = nullptr;       // of the level
  const KernelTable* tile_kernels = nullptr;  // of packed tiles: the level's, or its own for bf16
  std::int64_t group = 1;
  std::int64_t tile_keys = kMaxTileKeys;
  std::int64_t rows_per_task = 0;
  std::int64_t heads_together = 1;  // > 1 only where every sequence takes the direct path; divides heads_kv
  std::int64_t q_stride = 0;        // head_dim_qk rounded up to a vector
  std::int64_t o_stride = 0;        // head_dim_v rounded up to a vector
  std::size_t q_row_bytes = 0;      // of a packed query, key and value
  std::size_t k_row_bytes = 0;
  std::size_t v_row_bytes = 0;
  SplitRule split_rule = SplitRule::kNone;
  std::int64_t fixed_tiles = 0;  // of a split under kFixedKeys
  int threads = 1;               // that the attention phase engages; no phase more
  int append_threads = 1;        // … that of new keys
  int combine_threads = 1;       // … that of the splits' results
  double estimated_us = 0;       // of one thread: see partition.hpp
  ScratchLayout scratch;
  std::size_t table_offset = 0;     // varlen_q: batch + 1 task numbers
  std::size_t scratch_offset = 0;   // threads × scratch.bytes
  std::size_t partials_offset = 0;  // partial_rows × num_splits × (head_dim_v + 2) floats
  std::int64_t partial_rows = 0;
  Team team;
};

// Query and place in its group of query heads of a packed row. (A division takes as long as four vectors of
// the softmax, and a group of one is common.)
struct PackedRow {
  std::int64_t query = 0;
  std::int64_t in_group = 0;
};
[[nodiscard]] inline PackedRow unpack_row(std::int64_t group, std::int64_t r) {
  return group == 1 ? PackedRow{r, 0} : PackedRow{r / group, r % group};
}

// What plan() of cpu_backend.hpp does once level and threads are chosen; a test may choose more of them than
// the machine has.
Status plan(const Problem& problem, const LevelChoice& level, const ThreadChoice& threads,
            std::unique_ptr<BackendPlan>* result);

[[nodiscard]] Split split_of(const CpuPlan& plan, const Problem& p, const core::Sequence& s);

// The first partial row of a sequence and key/value head.
[[nodiscard]] std::int64_t partial_row_base(const CpuPlan& plan, const Problem& p, const core::Sequence& s,
                                            std::int64_t kv_head);

}  // namespace attn::cpu
