// See plan.hpp.
#include "cpu/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/limits.hpp"
#include "core/refusal.hpp"
#include "cpu/amx.hpp"
#include "cpu/cpu_backend.hpp"
#include "cpu/partition.hpp"
#include "cpu/tile.hpp"

namespace attn::cpu {
namespace {

// Floats of a K and a V tile together: 256 KiB.
constexpr std::int64_t kTileFloats = 64 * 1024;
// Floating-point operations below which a run stays on the calling thread: about the time in which another
// thread wakes up (some 20 µs at 50 GFLOP/s).
constexpr double kTinyFlops = 1e6;
// Of an element that is appended, or of a split's result that is combined: 1 ns, some cycles of plain code.
constexpr double kMoveUs = 1e-3;
// Chosen splits: as many as give this many tasks, of at least so many keys each.
constexpr std::int64_t kSplitTasks = 64;
constexpr std::int64_t kMinSplitKeys = 512;
constexpr std::int64_t kFixedSplitKeys = 2048;

// From the head dims alone: the place of a tile's edges is part of the result's bits.
std::int64_t choose_tile_keys(const Problem& p) {
  std::int64_t keys = kMaxTileKeys;
  while (keys > 64 && keys * (p.head_dim_qk + p.head_dim_v) > kTileFloats) {
    keys /= 2;
  }
  return keys;
}

// Products of AMX flush subnormal results: with a larger scale than this, what is lost of a logit could
// count.
constexpr float kLargestTileScale = 0x1p64F;

// Whether fp32 in three parts is faster than FMAs: not where 32 channels and columns a step are mostly
// padding (8 heads of 1024, d 16: 6.1 against 5.2 ms; d 24: 6.4 against 7.4), nor where packing a few rows
// and keys is most of the work (96 heads of 32 × 32, d 32: 265 against 248 µs; of 64 × 64 750 against 715; 12
// heads of 16 × 512, d 64: 400 against 375; of 32 × 32 the same). From the sizes of the longest sequence, so
// not where bits must not depend on it.
bool worth_parts(const Problem& p, std::int64_t rows) {
  constexpr std::int64_t kFewDims = 48;
  constexpr std::int64_t kFewFloats = 4096;
  const std::int64_t dims = p.head_dim_qk + p.head_dim_v;
  const bool own_lengths = p.varlen_q || p.varlen_kv || p.batch_invariant;
  return dims >= kFewDims && (own_lengths || std::min(rows, p.seqlen_kv) > kFewFloats / dims);
}

void choose_tile_kernels(const Problem& p, CpuPlan* plan) {
  const KernelTable* own = plan->kernels->tiles_of[static_cast<std::size_t>(p.dtype)];
  const bool fits = own != nullptr && std::abs(p.scale()) <= kLargestTileScale &&
                    (own->tile_parts < 3 || worth_parts(p, plan->group * p.seqlen_q));
  plan->tile_kernels = fits ? own : plan->kernels;
}

void layout_rows(const Problem& p, CpuPlan* plan) {
  if (const int parts = plan->tile_kernels->tile_parts; parts > 0) {
    const std::size_t bytes = 2 * static_cast<std::size_t>(parts);
    plan->q_row_bytes = static_cast<std::size_t>(round_up(p.head_dim_qk, kAmxStep)) * bytes;
    plan->k_row_bytes = plan->q_row_bytes;
    plan->v_row_bytes = static_cast<std::size_t>(round_up(p.head_dim_v, kAmxStep)) * bytes;
  } else {
    plan->q_row_bytes = static_cast<std::size_t>(p.head_dim_qk) * sizeof(float);
    plan->k_row_bytes = plan->q_row_bytes;
    plan->v_row_bytes = static_cast<std::size_t>(plan->o_stride) * sizeof(float);
  }
}

void choose_splits(const Problem& p, CpuPlan* plan) {
  const std::int64_t rows = plan->group * p.seqlen_q;
  plan->num_splits = 1;
  plan->split_rule = SplitRule::kNone;
  if (p.num_splits > 0) {
    plan->num_splits = p.num_splits;
    plan->split_rule = p.num_splits > 1 ? SplitRule::kRequested : SplitRule::kNone;
  } else if (p.batch_invariant) {
    // Not of the batch's longest sequence, but of this one; see split_of.
    plan->fixed_tiles = kFixedSplitKeys / plan->tile_keys;
    plan->num_splits = ceil_div(std::max<std::int64_t>(p.seqlen_kv, 1), kFixedSplitKeys);
    if (plan->num_splits > 1 && plan->group <= kSplitRows && (p.varlen_q || rows <= kSplitRows)) {
      plan->split_rule = SplitRule::kFixedKeys;
    } else {
      plan->num_splits = 1;
    }
  } else if (rows <= kSplitRows && p.batch > 0) {
    const std::int64_t tasks = p.batch * p.heads_kv;
    const std::int64_t wanted = ceil_div(kSplitTasks, std::max<std::int64_t>(tasks, 1));
    plan->num_splits = std::clamp<std::int64_t>(p.seqlen_kv / kMinSplitKeys, 1, wanted);
    plan->split_rule = plan->num_splits > 1 ? SplitRule::kAuto : SplitRule::kNone;
  }
}

// The tasks of a thread, of this many heads each, stay at least two. Results do not depend on it.
void choose_heads_together(const Problem& p, std::int64_t rows, CpuPlan* plan) {
  plan->heads_together = 1;
  if (p.varlen_q || rows > kDirectRows || p.batch == 0) {
    return;
  }
  const std::int64_t tasks = p.batch * p.heads_kv * plan->num_splits;
  const std::int64_t most =
      plan->threads == 1 ? kMaxHeadsTogether : tasks / (2 * static_cast<std::int64_t>(plan->threads));
  for (std::int64_t heads = std::min(kMaxHeadsTogether, p.heads_kv); heads > 1; --heads) {
    if (heads <= most && p.heads_kv % heads == 0) {
      plan->heads_together = heads;
      return;
    }
  }
}

// Adds a part of `bytes` at the end of *total and returns where it begins; false on overflow.
bool take(std::size_t bytes, std::size_t* total, std::size_t* offset) {
  *offset = *total;
  std::size_t end = 0;
  if (__builtin_add_overflow(bytes, *total, &end) || end > SIZE_MAX / 2) {
    return false;
  }
  *total = (end + 63) / 64 * 64;
  return true;
}

ScratchLayout layout_scratch(const Problem& p, const CpuPlan& plan) {
  ScratchLayout s;
  const auto floats = [&](std::int64_t count, std::size_t* offset) {
    (void)take(static_cast<std::size_t>(count) * sizeof(float), &s.bytes, offset);  // far from overflowing
  };
  const auto bytes = [&](std::int64_t count, std::size_t size, std::size_t* offset) {
    (void)take(static_cast<std::size_t>(count) * size, &s.bytes, offset);
  };
  const KernelTable& k = *plan.tile_kernels;
  const std::int64_t rows = plan.rows_per_task + kMaxBlockRows;  // blocks are padded
  // The direct path keeps its few queries as q_stride floats each.
  const std::size_t direct_bytes = static_cast<std::size_t>(kDirectRows * plan.q_stride) * sizeof(float);
  bytes(1, std::max(static_cast<std::size_t>(rows) * plan.q_row_bytes, direct_bytes), &s.q);
  floats(rows * plan.o_stride, &s.o);
  // Where the tiles' products keep nothing of what rounding lost, the direct path does.
  floats((k.keeps_low ? rows : kDirectRows + kMaxBlockRows) * plan.o_stride, &s.o_low);
  bytes(rows, sizeof(RowState), &s.rows);
  floats(rows, &s.row_max);
  floats(rows, &s.row_sum);
  floats(rows, &s.row_sum_low);
  s.head_bytes = s.bytes;
  s.bytes *= static_cast<std::size_t>(plan.heads_together);
  floats(plan.q_stride, &s.q_row);
  bytes(plan.tile_keys, plan.k_row_bytes, &s.k);
  bytes(plan.tile_keys, plan.v_row_bytes, &s.v);
  // Touched by calls alone whose V holds small values; no more heads than one where tiles are packed.
  if (k.split_v != nullptr && (p.varlen_q || plan.group * p.seqlen_q > kDirectRows)) {
    bytes(plan.tile_keys, plan.v_row_bytes, &s.v_small);
    floats(rows * plan.o_stride, &s.o_small);
    floats(k.keeps_low ? rows * plan.o_stride : 0, &s.o_small_low);
  }
  floats(std::max(k.panel_keys, k.block_rows) * plan.q_stride, &s.stage);
  // A block's rotated queries lie in the scores' place before they are packed.
  floats(std::max<std::int64_t>(k.score_floats, p.rotary_dim > 0 ? k.block_rows * p.head_dim_qk : 0), &s.s);
  bytes(kMaxTileKeys, sizeof(void*), &s.k_rows);
  bytes(kMaxTileKeys, sizeof(void*), &s.v_rows);
  return s;
}

Status layout_workspace(const Problem& p, CpuPlan* plan) {
  std::size_t total = 0;
  bool fits = true;
  if (p.varlen_q) {
    fits = take(static_cast<std::size_t>(p.batch + 1) * sizeof(std::int64_t), &total, &plan->table_offset);
  }
  fits = fits &&
         take(static_cast<std::size_t>(plan->threads) * plan->scratch.bytes, &total, &plan->scratch_offset);
  std::int64_t floats = 0;
  if (plan->split_rule != SplitRule::kNone) {
    std::int64_t rows = plan->group * p.seqlen_q;
    if (p.varlen_q && plan->split_rule == SplitRule::kRequested) {
      plan->partial_rows = p.total_q * p.heads_q;
    } else {
      rows = plan->split_rule == SplitRule::kRequested ? rows : std::min(rows, kSplitRows);
      fits = fits && !__builtin_mul_overflow(p.batch * p.heads_kv, rows, &plan->partial_rows);
    }
    fits =
        fits && !__builtin_mul_overflow(plan->partial_rows, plan->num_splits * (p.head_dim_v + 2), &floats);
    fits = fits && floats < (std::int64_t{1} << 60);
    fits = fits && take(static_cast<std::size_t>(floats) * sizeof(float), &total, &plan->partials_offset);
  }
  if (!fits) {
    return {StatusCode::kUnsupported,
            fmt::format("num_splits is {}; allowed here: fewer, so that the partial results of {} query rows "
                        "fit a 63-bit size",
                        plan->num_splits, plan->partial_rows)};
  }
  plan->workspace_bytes = total;
  return {};
}

void write_notes(const Problem& p, const ThreadChoice& threads, const std::string& level_reason,
                 CpuPlan* plan) {
  const KernelTable& k = *plan->kernels;
  plan->kernel = fmt::format("cpu:{}", k.level);
  plan->notes.push_back(fmt::format("level: {} ({})", k.level, level_reason));
  const std::int64_t rows = plan->group * p.seqlen_q;
  plan->notes.push_back(
      !p.varlen_q && rows <= kDirectRows
          ? fmt::format("path: direct, {} rows (query heads × queries of a key/value head) at once, {} heads "
                        "by turns; K and V read in place",
                        rows, plan->heads_together)
          : fmt::format("path: packed tiles; sequences of at most {} rows: direct", kDirectRows));
  plan->notes.push_back(fmt::format("tiles: {} rows a task × {} keys, register tile {} × {} keys",
                                    plan->rows_per_task, plan->tile_keys, plan->tile_kernels->block_rows,
                                    plan->tile_kernels->panel_keys));
  const char* const products[] = {"fp32", "AMX, bf16 with fp32 sums",
                                  "AMX, fp16 as two bf16 numbers, with fp32 sums",
                                  "AMX, fp32 as three bf16 numbers, with fp32 sums"};
  plan->notes.push_back(fmt::format("tile products: {}", products[plan->tile_kernels->tile_parts]));
  const char* rule = "";
  switch (plan->split_rule) {
    case SplitRule::kNone:
      rule = "one pass over the keys";
      break;
    case SplitRule::kRequested:
      rule = "as requested";
      break;
    case SplitRule::kAuto:
      rule = "from the problem's sizes";
      break;
    case SplitRule::kFixedKeys:
      rule = "at most; one for each 2048 keys of a sequence of few rows";
      break;
  }
  plan->notes.push_back(fmt::format("split rule: {}", rule));
  plan->notes.push_back(fmt::format(
      "threads: {} ({}{})", plan->threads, threads.reason,
      plan->threads < threads.threads
          ? fmt::format("; about {:.0f} µs of work are worth no more", std::ceil(plan->estimated_us))
          : ""));
  plan->notes.push_back(fmt::format("scratch: {} bytes a thread", plan->scratch.bytes));
}

}  // namespace

Split split_of(const CpuPlan& plan, const Problem& p, const core::Sequence& s) {
  const core::KeyRange range = core::visible_keys_of_rows(p, s, 0, s.seqlen_q);
  Split split;
  if (!range.empty()) {
    split.first_tile = range.begin / plan.tile_keys;
    split.num_tiles = ceil_div(range.end, plan.tile_keys) - split.first_tile;
  }
  split.tiles_per_split = std::max<std::int64_t>(split.num_tiles, 1);
  const bool few_rows = plan.group * s.seqlen_q <= kSplitRows;
  switch (plan.split_rule) {
    case SplitRule::kNone:
      break;
    case SplitRule::kRequested:
    case SplitRule::kAuto:
      split.tiles_per_split = std::max<std::int64_t>(ceil_div(split.num_tiles, plan.num_splits), 1);
      break;
    case SplitRule::kFixedKeys:
      if (few_rows) {
        split.tiles_per_split = plan.fixed_tiles;
      }
      break;
  }
  split.count = std::max<std::int64_t>(ceil_div(split.num_tiles, split.tiles_per_split), 1);
  return split;
}

std::int64_t partial_row_base(const CpuPlan& plan, const Problem& p, const core::Sequence& s,
                              std::int64_t kv_head) {
  if (p.varlen_q && plan.split_rule == SplitRule::kRequested) {
    return s.q_begin * p.heads_q + kv_head * plan.group * s.seqlen_q;
  }
  const std::int64_t all = plan.group * p.seqlen_q;
  const std::int64_t rows = plan.split_rule == SplitRule::kRequested ? all : std::min(all, kSplitRows);
  return (s.batch * p.heads_kv + kv_head) * rows;
}

namespace {

Status check_sizes(const Problem& p) {
  ATTN_RETURN_IF_ERROR(core::check_range("batch × heads_kv", p.batch * p.heads_kv, 0, core::kMaxLength));
  for (const auto& [name, dim] : {std::pair{"head_dim_qk", p.head_dim_qk}, {"head_dim_v", p.head_dim_v}}) {
    if (dim > kMaxHeadDimCpu) {
      return {StatusCode::kUnsupported,
              fmt::format("{} is {}; allowed on the CPU: 1 to {}", name, dim, kMaxHeadDimCpu)};
    }
  }
  return {};
}

// How many threads each phase of the run engages, and the rows of a task.
void choose_partition(const Problem& p, int at_hand, CpuPlan* plan) {
  const double flops = 2.0 * static_cast<double>(plan->group * p.seqlen_q) *
                       static_cast<double>(p.batch * p.heads_kv) * static_cast<double>(p.seqlen_kv) *
                       static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const Partition cut = partition(work_of(p, *plan), flops < kTinyFlops ? 1 : at_hand);
  plan->rows_per_task = cut.rows_per_task;
  plan->threads = cut.threads;
  plan->estimated_us = cut.us;
  const std::int64_t rows = plan->group * p.seqlen_q;
  const std::int64_t heads = p.batch * p.heads_kv;
  plan->append_threads = threads_worth(
      heads, kMoveUs * static_cast<double>(p.seqlen_new * (p.head_dim_qk + p.head_dim_v)), cut.threads);
  constexpr std::int64_t kMany = std::int64_t{1}
                                 << 20;  // more change nothing, and products must not overflow
  plan->combine_threads = threads_worth(
      heads * std::min(ceil_div(rows, cut.rows_per_task), kMany),
      kMoveUs * static_cast<double>(std::min(rows, cut.rows_per_task) * plan->num_splits * p.head_dim_v),
      cut.threads);
}

}  // namespace

Status support(const Problem& p, const PlanOptions& options) {
  ATTN_RETURN_IF_ERROR(check_sizes(p));
  LevelChoice level;
  ATTN_RETURN_IF_ERROR(choose_level(options, &level));
  ThreadRequest request;
  return request_threads(options.threads, &request);
}

Status plan(const Problem& p, const PlanOptions& options, std::unique_ptr<BackendPlan>* result) {
  LevelChoice level;
  ThreadChoice threads;
  ATTN_RETURN_IF_ERROR(choose_level(options, &level));
  ATTN_RETURN_IF_ERROR(choose_threads(options.threads, &threads));
  return plan(p, level, threads, result);
}

Status plan(const Problem& p, const LevelChoice& level, const ThreadChoice& threads,
            std::unique_ptr<BackendPlan>* result) {
  ATTN_RETURN_IF_ERROR(check_sizes(p));
  auto plan = std::make_unique<CpuPlan>();
  const KernelTable& kernels = *level.kernels;
  plan->kernels = &kernels;
  plan->group = p.heads_q / p.heads_kv;
  choose_tile_kernels(p, plan.get());
  plan->q_stride = round_up(p.head_dim_qk, kernels.lanes);
  plan->o_stride = round_up(p.head_dim_v, kernels.lanes);
  plan->tile_keys = choose_tile_keys(p);
  layout_rows(p, plan.get());
  choose_splits(p, plan.get());
  choose_partition(p, threads.threads, plan.get());
  choose_heads_together(p, std::max<std::int64_t>(plan->group * p.seqlen_q, 1), plan.get());
  plan->scratch = layout_scratch(p, *plan);
  ATTN_RETURN_IF_ERROR(layout_workspace(p, plan.get()));
  plan->team = Team(threads.patient);
  write_notes(p, threads, level.reason, plan.get());
  *result = std::move(plan);
  return {};
}

}  // namespace attn::cpu
