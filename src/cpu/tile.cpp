// See tile.hpp.
#include "cpu/tile.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <optional>

#include "core/numeric.hpp"
#include "cpu/append.hpp"
#include "cpu/finish.hpp"
#include "cpu/tile_runner.hpp"

namespace attn::cpu {
namespace {

// What stands for keys that no row of a task sees: they pad a panel and are never read from memory. And for
// what rounding lost of O, where that is not kept.
alignas(64) constexpr float kZeroRow[kMaxHeadDimCpu + 16] = {};

}  // namespace

void TaskRunner::begin_rows() {
  // Blocks of about the same size, each of whole granules but for the last: what a block is padded with must
  // not lie where the next one is.
  const int most = direct_ ? kMaxDirectRows : kernels_.block_rows;
  const int granule = direct_ ? 1 : kernels_.block_granule;
  num_blocks_ = (num_rows_ + most - 1) / most;
  block_rows_ = (num_rows_ + num_blocks_ - 1) / num_blocks_;
  block_rows_ = (block_rows_ + granule - 1) / granule * granule;
  num_blocks_ = (num_rows_ + block_rows_ - 1) / block_rows_;

  const auto state_of = [&](int row) {
    RowState state = begin_row(context_, task_.sequence, task_.kv_head, task_.row_begin + row);
    state.visible_begin = std::clamp(state.visible_begin, task_.key_begin, task_.key_end);
    state.visible_end = std::clamp(state.visible_end, task_.key_begin, task_.key_end);
    return state;
  };
  // Bounds never fall from a row to the next, so all rows see what the first and the last both see.
  rows_[0] = state_of(0);
  rows_[num_rows_ - 1] = state_of(num_rows_ - 1);
  const bool alike = !problem_.alibi && rows_[0].visible_begin == rows_[num_rows_ - 1].visible_begin &&
                     rows_[0].visible_end == rows_[num_rows_ - 1].visible_end;
  for (int row = 1; row < num_rows_ - 1; ++row) {
    rows_[row] = alike ? rows_[0] : state_of(row);
  }
  const Block last = block(num_blocks_ - 1);
  const auto padded = static_cast<std::size_t>(last.first + last.padded);
  std::fill_n(row_max_, padded, -std::numeric_limits<float>::infinity());
  std::fill_n(row_sum_, padded, 0.0F);
  std::fill_n(row_sum_low_, padded, 0.0F);
  // By memset, which uses the CPU's widest stores where code for the baseline cannot.
  const std::size_t bytes = padded * static_cast<std::size_t>(plan_.o_stride) * sizeof(float);
  std::memset(o_, 0, bytes);
  if (kernels_.keeps_low) {
    std::memset(o_low_, 0, bytes);
  }
  const double scale = problem_.scale();
  factor_ = static_cast<float>(problem_.softcap > 0.0F ? scale : scale * std::numbers::log2e);
  // A positive factor can wait for the softmax: it keeps the order of scores and the −inf of hidden ones.
  if (kernels_.tile_parts > 0 && factor_ > 0.0F && problem_.softcap == 0.0F && !problem_.alibi) {
    deferred_ = factor_;
    factor_ = 1;
  }
}

const void* TaskRunner::query(int row) const {
  const std::int64_t r = task_.row_begin + row;
  const PackedRow row_of = unpack_row(plan_.group, r);
  const std::int64_t i = row_of.query;
  const std::int64_t h = task_.kv_head * plan_.group + row_of.in_group;
  const TensorView& q = context_.tensors.q;
  return static_cast<const char*>(q.data) +
         core::q_row_offset(q, task_.sequence, i, h) * static_cast<std::int64_t>(size_of(q.dtype));
}

void TaskRunner::load_query(int row, float* out) const {
  kernels_.to_float(query(row), problem_.dtype, static_cast<std::size_t>(problem_.head_dim_qk), out);
  if (problem_.rotary_dim > 0) {
    const std::int64_t i = (task_.row_begin + row) / plan_.group;
    rotate_row(problem_, context_.tensors, task_.sequence.off + i, out);
  }
}

const void* TaskRunner::packed_queries(const Block& b) const {
  return reinterpret_cast<const char*>(q_) + static_cast<std::size_t>(b.first) * plan_.q_row_bytes;
}

float* TaskRunner::packed_keys(int key) const {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(k_) +
                                  static_cast<std::size_t>(key) * plan_.k_row_bytes);
}

void TaskRunner::pack_queries() {
  const auto dim = static_cast<int>(problem_.head_dim_qk);
  if (direct_) {
    const std::int64_t stride = plan_.q_stride;
    std::fill_n(q_, num_rows_ * stride, 0.0F);
    for (int row = 0; row < num_rows_; ++row) {
      load_query(row, q_ + row * stride);
    }
    return;
  }
  const bool rotated = problem_.rotary_dim > 0;
  const bool bf16 = kernels_.tile_parts == 1;  // which pack_q takes as they are
  for (int index = 0; index < num_blocks_; ++index) {
    const Block b = block(index);
    const void* rows[kMaxBlockRows];
    for (int row = 0; row < b.count; ++row) {
      rows[row] = query(b.first + row);
      if (b.first + block_rows_ + row < num_rows_) {
        prefetch_row(query(b.first + block_rows_ + row));
      }
      if (rotated) {  // into the scores, which are not there yet; exact, since rotation rounds to the dtype
        float* out = s_ + static_cast<std::ptrdiff_t>(row) * (bf16 ? (dim + 1) / 2 : dim);
        load_query(b.first + row, bf16 ? q_row_ : out);
        if (bf16) {
          kernels_.from_float(q_row_, DType::kBFloat16, static_cast<std::size_t>(dim), out);
        }
        rows[row] = out;
      }
    }
    const DType dtype = rotated && !bf16 ? DType::kFloat32 : problem_.dtype;
    if (!kernels_.pack_q(rows, b.count, b.padded, dim, dtype, stage_, const_cast<void*>(packed_queries(b)))) {
      flag_queries(b);
    }
  }
}

// Asks for a query row ahead of its use: its neighbours in memory are other heads' rows.
void TaskRunner::prefetch_row(const void* row) const {
  const std::int64_t bytes = problem_.head_dim_qk * static_cast<std::int64_t>(size_of(problem_.dtype));
  for (std::int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + at);
  }
}

// The addresses of keys [begin, end) of the tile at base.
void TaskRunner::list_rows(const TensorView& tensor, std::int64_t base, int begin, int end,
                           const void** rows) const {
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  const char* data = static_cast<const char*>(tensor.data);
  for (int key = begin; key < end;) {
    const std::int64_t offset =
        core::kv_row_offset(problem_, context_.tensors, tensor, task_.sequence, base + key, task_.kv_head);
    std::int64_t run = end - key;  // keys whose addresses are a stride apart
    if (problem_.page_size > 0) {
      run = std::min(run, problem_.page_size - (base + key) % problem_.page_size);
    }
    for (std::int64_t n = 0; n < run; ++n, ++key) {
      rows[key] = data + (offset + n * tensor.strides[1]) * size;
    }
  }
}

void TaskRunner::score(const Block& b, int begin, int end) {
  const auto dim = static_cast<int>(problem_.head_dim_qk);
  if (direct_) {
    kernels_.scores_direct(q_ + b.first * plan_.q_stride, b.count, static_cast<int>(plan_.q_stride), dim,
                           k_rows_, begin, end, problem_.dtype, factor_, s_);
  } else {
    const int panel = kernels_.panel_keys;
    kernels_.scores(packed_queries(b), b.padded, dim, k_, begin / panel, (end + panel - 1) / panel, factor_,
                    s_);
    if (inexact_keys_ || inexact_queries_) {
      rescore(b, begin, end);
    }
  }
}

void TaskRunner::transform(const Block& b, std::int64_t base, int begin, int end) {
  float slope[kMaxBlockRows];
  float distance[kMaxBlockRows];
  for (int row = 0; row < b.count; ++row) {
    const RowState& state = rows_[b.first + row];
    slope[row] = state.slope_log2;
    distance[row] = static_cast<float>(base - state.reference_key);
  }
  LogitTransform how;
  how.softcap = problem_.softcap;
  how.slope_log2 = problem_.alibi ? slope : nullptr;
  how.distance = distance;
  kernels_.transform(s_, b.count, begin, end, how);
}

// −inf for what a row does not see among keys [begin, end), whatever stands there.
void TaskRunner::hide_invisible(const Block& b, std::int64_t base, int begin, int end) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (int row = 0; row < b.count; ++row) {
    const int from = std::clamp(tile_begin(b.first + row, base), begin, end);
    const int to = std::clamp(tile_end(b.first + row, base), from, end);
    float* scores = s_ + row * kScoreStride;
    std::fill(scores + begin, scores + from, kHidden);
    std::fill(scores + to, scores + end, kHidden);
  }
}

void TaskRunner::softmax(const Block& b, int begin, int end, float* rescale) {
  kernels_.softmax({s_, b.count, begin, end, row_max_ + b.first, row_sum_ + b.first, row_sum_low_ + b.first,
                    rescale, deferred_});
}

void TaskRunner::accumulate(const Block& b, std::int64_t base, const float* rescale, int begin, int end) {
  const auto stride = static_cast<int>(plan_.o_stride);
  const auto dim = static_cast<int>(problem_.head_dim_v);
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(b.first) * stride;
  Accumulation a{s_, b.padded, begin, end, rescale, o_ + at, o_low_ + at, stride};
  if (!direct_) {
    a.begin = panel_floor(begin);
    kernels_.accumulate(a, v_, static_cast<int>(plan_.tile_keys), dim);
    return;
  }
  // One pass for all rows where they see the same keys; else one a row, which touches no other key.
  const bool alike = tile_begin(b.first + b.count - 1, base) <= begin && tile_end(b.first, base) >= end;
  if (alike) {
    kernels_.accumulate_direct(a, v_rows_, dim, problem_.dtype);
    return;
  }
  for (int row = 0; row < b.count; ++row) {
    const int from = tile_begin(b.first + row, base);
    const int to = tile_end(b.first + row, base);
    if (from < to) {
      const std::ptrdiff_t shift = at + static_cast<std::ptrdiff_t>(row) * stride;
      kernels_.accumulate_direct(
          {s_ + row * kScoreStride, 1, from, to, rescale + row, o_ + shift, o_low_ + shift, stride}, v_rows_,
          dim, problem_.dtype);
    }
  }
}

void TaskRunner::run_block(const Block& b, std::int64_t base) {
  // Rows are in the order of their queries, so the first sees the first key of all and the last the last.
  const int begin = tile_begin(b.first, base);
  const int end = tile_end(b.first + b.count - 1, base);
  if (begin >= end) {
    return;
  }
  const int from = panel_floor(begin);
  const int to = panel_ceil(end);
  score(b, begin, end);
  if (problem_.softcap > 0.0F || problem_.alibi) {
    transform(b, base, from, to);
  }
  const bool all_visible = tile_begin(b.first + b.count - 1, base) <= from && tile_end(b.first, base) >= to;
  if (!all_visible) {
    hide_invisible(b, base, from, to);
  }
  alignas(64) float rescale[kMaxBlockRows] = {};
  softmax(b, from, to, rescale);
  accumulate(b, base, rescale, begin, end);
  if (sums_small_) {
    accumulate_small(b, rescale, begin, end);
  }
  if (poisoned_) {
    add_poison(b, base, begin, end);
  }
}

void TaskRunner::pack_tile(int begin, int end) {
  const int from = panel_floor(begin);
  const int to = panel_ceil(end);
  for (int key = from; key < to; ++key) {
    if (key < begin || key >= end) {
      k_rows_[key] = kZeroRow;
      v_rows_[key] = kZeroRow;
    }
  }
  const auto dim_qk = static_cast<int>(problem_.head_dim_qk);
  const auto dim_v = static_cast<int>(problem_.head_dim_v);
  const bool exact =
      kernels_.pack_k(k_rows_ + from, to - from, dim_qk, problem_.dtype, stage_, packed_keys(from));
  inexact_keys_ = !exact;
  if (!exact) {
    flag_keys(from, to);
  }
  const auto stride = static_cast<int>(plan_.tile_keys);
  UnfitV unfit;
  if (!kernels_.pack_v(v_rows_, from, to, dim_v, problem_.dtype, stride, v_)) {
    unfit = kernels_.split_v == nullptr ? UnfitV{false, true}
                                        : kernels_.split_v(v_rows_, from, to, dim_v, stride, v_, v_small_);
  }
  small_ = unfit.small;
  if (small_ && !sums_small_) {
    begin_small();
  }
  // Also where every row of the task sees the keys and nothing finite is at risk: whether they all do depends
  // on how rows are cut into tasks, and an Inf that comes after a finite sum that overflowed makes NaN.
  poisoned_ = unfit.poison;
  if (poisoned_) {
    replace_poison(from, to);
  }
}

void TaskRunner::run_tile(std::int64_t base) {
  const int begin = tile_begin(0, base);
  const int end = tile_end(num_rows_ - 1, base);
  if (begin >= end) {
    return;
  }
  list_rows(context_.tensors.k, base, begin, end, k_rows_);
  list_rows(context_.tensors.v, base, begin, end, v_rows_);
  if (!direct_) {
    pack_tile(begin, end);
  }
  for (int index = 0; index < num_blocks_; ++index) {
    run_block(block(index), base);
  }
}

void TaskRunner::finish() {
  for (int row = 0; row < num_rows_; ++row) {
    rows_[row].max = row_max_[row];
    rows_[row].sum = row_sum_[row];
    rows_[row].sum_low = row_sum_low_[row];
    if (sums_small_) {
      add_small(row);
    }
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * plan_.o_stride;
    const float* low = kernels_.keeps_low ? o_low_ + at : kZeroRow;
    if (task_.partials != nullptr) {
      store_partial(context_, rows_[row], o_ + at, low, task_.partials + row * task_.partial_stride);
    } else {
      finish_row(context_, task_.sequence, task_.kv_head, task_.row_begin + row, rows_[row], o_ + at, low);
    }
  }
}

void TaskRunner::begin() {
  begin_rows();
  if (first_key() < end_key()) {
    pack_queries();
  }
}

void run_task(const RunContext& context, const Task& task, char* scratch) {
  std::optional<TaskRunner> heads[kMaxHeadsTogether];
  const std::int64_t count = context.plan.heads_together;
  for (std::int64_t n = 0; n < count; ++n) {
    Task of_head = task;
    of_head.kv_head += n;
    of_head.partials += task.partials == nullptr ? 0 : n * task.partial_head_stride;
    heads[n].emplace(context, of_head, scratch, n);
    heads[n]->begin();
  }
  // All heads of a sequence see the same keys.
  const std::int64_t end = heads[0]->end_key();
  const KernelTable& kernels = heads[0]->kernels();
  if (kernels.enter != nullptr) {
    kernels.enter();
  }
  for (std::int64_t base = heads[0]->first_key(); base < end; base += context.plan.tile_keys) {
    for (std::int64_t n = 0; n < count; ++n) {
      heads[n]->run_tile(base);
    }
  }
  if (kernels.leave != nullptr) {
    kernels.leave();
  }
  for (std::int64_t n = 0; n < count; ++n) {
    heads[n]->finish();
  }
}

}  // namespace attn::cpu
