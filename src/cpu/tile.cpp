// See tile.hpp.
#include "cpu/tile.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/numeric.hpp"
#include "cpu/append.hpp"
#include "cpu/finish.hpp"

namespace attn::cpu {
namespace {

// What stands for keys that no row of a task sees: they pad a panel and are never read from memory.
alignas(64) constexpr float kZeroRow[kMaxHeadDimCpu + 16] = {};

class TaskRunner {
 public:
  TaskRunner(const RunContext& context, const Task& task, char* scratch)
      : context_(context),
        plan_(context.plan),
        kernels_(*context.plan.kernels),
        problem_(context.problem),
        task_(task),
        num_rows_(static_cast<int>(task.row_end - task.row_begin)),
        direct_(context.plan.group * task.sequence.seqlen_q <= kDirectRows),
        q_(part<float>(scratch, plan_.scratch.q)),
        q_row_(part<float>(scratch, plan_.scratch.q_row)),
        k_(part<float>(scratch, plan_.scratch.k)),
        v_(part<float>(scratch, plan_.scratch.v)),
        stage_(part<float>(scratch, plan_.scratch.stage)),
        s_(part<float>(scratch, plan_.scratch.s)),
        o_(part<float>(scratch, plan_.scratch.o)),
        o_low_(part<float>(scratch, plan_.scratch.o_low)),
        rows_(part<RowState>(scratch, plan_.scratch.rows)),
        k_rows_(part<const void*>(scratch, plan_.scratch.k_rows)),
        v_rows_(part<const void*>(scratch, plan_.scratch.v_rows)) {}

  void run();

 private:
  // Rows [first, first + count) of the task, which go through the kernels together.
  struct Block {
    int first = 0;
    int count = 0;
    int padded = 0;  // as packed
  };

  template <class T>
  static T* part(char* scratch, std::size_t offset) {
    return reinterpret_cast<T*>(scratch + offset);
  }

  [[nodiscard]] Block block(int index) const {
    const int first = index * block_rows_;
    const int count = std::min(block_rows_, num_rows_ - first);
    return {first, count, direct_ ? count : (count + 1) / 2 * 2};
  }

  void begin_rows();
  void load_query(int row, float* out);
  void pack_queries();
  void list_rows(const TensorView& tensor, std::int64_t base, int begin, int end, const void** rows) const;
  void run_tile(std::int64_t base);
  void run_block(const Block& block, std::int64_t base);
  void score(const Block& block, int begin, int end);
  void transform(const Block& block, std::int64_t base, int begin, int end);
  void hide_invisible(const Block& block, std::int64_t base, int begin, int end);
  void softmax(const Block& block, int begin, int end, float* rescale);
  void accumulate(const Block& block, std::int64_t base, const float* rescale, int begin, int end);
  void replace_poison(int begin, int end);
  void add_poison(const Block& block, std::int64_t base, int begin, int end);
  void finish();

  // Keys of the tile at `base` that row sees, relative to base.
  [[nodiscard]] int tile_begin(int row, std::int64_t base) const {
    return static_cast<int>(std::clamp<std::int64_t>(rows_[row].visible_begin - base, 0, plan_.tile_keys));
  }
  [[nodiscard]] int tile_end(int row, std::int64_t base) const {
    return static_cast<int>(std::clamp<std::int64_t>(rows_[row].visible_end - base, 0, plan_.tile_keys));
  }
  [[nodiscard]] int panel_floor(int key) const { return key / kernels_.panel_keys * kernels_.panel_keys; }
  [[nodiscard]] int panel_ceil(int key) const { return panel_floor(key + kernels_.panel_keys - 1); }

  const RunContext& context_;
  const CpuPlan& plan_;
  const KernelTable& kernels_;
  const Problem& problem_;
  const Task& task_;
  const int num_rows_;
  const bool direct_;
  int block_rows_ = 0;
  int num_blocks_ = 0;
  float factor_ = 0;       // of q·k: into the log2 domain, or into the natural one where a softcap follows
  bool poisoned_ = false;  // the V tile holds something that is not finite and that some row may not see
  bool poison_[kMaxTileKeys] = {};  // … which keys

  float* q_;
  float* q_row_;
  float* k_;
  float* v_;
  float* stage_;
  float* s_;
  float* o_;
  float* o_low_;
  RowState* rows_;
  const void** k_rows_;
  const void** v_rows_;
};

void TaskRunner::begin_rows() {
  // Blocks of about the same size; an even number of rows, since only those are compiled.
  const int most = direct_ ? kMaxDirectRows : kernels_.block_rows;
  num_blocks_ = (num_rows_ + most - 1) / most;
  block_rows_ = (num_rows_ + num_blocks_ - 1) / num_blocks_;
  block_rows_ = direct_ ? block_rows_ : (block_rows_ + 1) / 2 * 2;
  num_blocks_ = (num_rows_ + block_rows_ - 1) / block_rows_;

  for (int row = 0; row < num_rows_; ++row) {
    RowState state = begin_row(context_, task_.sequence, task_.kv_head, task_.row_begin + row);
    state.visible_begin = std::clamp(state.visible_begin, task_.key_begin, task_.key_end);
    state.visible_end = std::clamp(state.visible_end, task_.key_begin, task_.key_end);
    rows_[row] = state;
  }
  const std::size_t floats =
      static_cast<std::size_t>(num_rows_ + kMaxBlockRows) * static_cast<std::size_t>(plan_.o_stride);
  std::fill_n(o_, floats, 0.0F);
  std::fill_n(o_low_, floats, 0.0F);
  const double scale = problem_.scale();
  factor_ = static_cast<float>(problem_.softcap > 0.0F ? scale : scale * std::numbers::log2e);
}

void TaskRunner::load_query(int row, float* out) {
  const std::int64_t r = task_.row_begin + row;
  const std::int64_t i = r / plan_.group;
  const std::int64_t h = task_.kv_head * plan_.group + r % plan_.group;
  const TensorView& q = context_.tensors.q;
  const char* in = static_cast<const char*>(q.data) +
                   core::q_row_offset(q, task_.sequence, i, h) * static_cast<std::int64_t>(size_of(q.dtype));
  kernels_.to_float(in, q.dtype, static_cast<std::size_t>(problem_.head_dim_qk), out);
  if (problem_.rotary_dim > 0) {
    rotate_row(problem_, context_.tensors, task_.sequence.off + i, out);
  }
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
  for (int index = 0; index < num_blocks_; ++index) {
    const Block b = block(index);
    float* packed = q_ + static_cast<std::ptrdiff_t>(b.first) * dim;  // [channel][row]
    for (int row = 0; row < b.padded; ++row) {
      if (row < b.count) {
        load_query(b.first + row, q_row_);
      } else {
        std::fill_n(q_row_, dim, 0.0F);
      }
      for (int c = 0; c < dim; ++c) {
        packed[c * b.padded + row] = q_row_[c];
      }
    }
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
    kernels_.scores(q_ + static_cast<std::ptrdiff_t>(b.first) * dim, b.padded, dim, k_, begin / panel,
                    (end + panel - 1) / panel, factor_, s_);
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
  float max[kMaxBlockRows] = {};
  float sum[kMaxBlockRows] = {};
  float sum_low[kMaxBlockRows] = {};
  for (int row = 0; row < b.count; ++row) {
    max[row] = rows_[b.first + row].max;
    sum[row] = rows_[b.first + row].sum;
    sum_low[row] = rows_[b.first + row].sum_low;
  }
  kernels_.softmax({s_, b.count, begin, end, max, sum, sum_low, rescale});
  for (int row = 0; row < b.count; ++row) {
    rows_[b.first + row].max = max[row];
    rows_[b.first + row].sum = sum[row];
    rows_[b.first + row].sum_low = sum_low[row];
  }
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

// Rule 6 for packed V: 0 · NaN is NaN, so a row that does not see a key must not meet what is not finite in
// it. Zeros stand in for such elements; rows that do see the key get them afterwards (add_poison). So no bit
// of the other rows depends on what stands in a key that they do not see.
void TaskRunner::replace_poison(int begin, int end) {
  const int lanes = kernels_.lanes;
  const int vectors = static_cast<int>(plan_.o_stride) / lanes;
  for (int key = begin; key < end; ++key) {
    poison_[key] = false;
    for (int v = 0; v < vectors; ++v) {
      const int panel = v / 2;
      const int width = (vectors - panel * 2 >= 2 ? 2 : 1) * lanes;
      float* x = v_ + static_cast<std::ptrdiff_t>(panel) * plan_.tile_keys * 2 * lanes + key * width +
                 (v % 2) * lanes;
      for (int lane = 0; lane < lanes; ++lane) {
        if (!std::isfinite(x[lane])) {
          x[lane] = 0.0F;
          poison_[key] = true;
        }
      }
    }
  }
}

void TaskRunner::add_poison(const Block& b, std::int64_t base, int begin, int end) {
  for (int key = begin; key < end; ++key) {
    if (!poison_[key]) {
      continue;
    }
    for (int row = 0; row < b.count; ++row) {
      if (key < tile_begin(b.first + row, base) || key >= tile_end(b.first + row, base)) {
        continue;
      }
      const float p = s_[row * kScoreStride + key];
      float* o = o_ + static_cast<std::ptrdiff_t>(b.first + row) * plan_.o_stride;
      for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) {
        const float v = core::load_element(v_rows_[key], problem_.dtype, c);
        if (!std::isfinite(v)) {
          o[c] += p * v;
        }
      }
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
  if (poisoned_) {
    add_poison(b, base, begin, end);
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
    kernels_.pack_k(k_rows_ + from, to - from, dim_qk, problem_.dtype, stage_,
                    k_ + static_cast<std::ptrdiff_t>(from) * dim_qk);
    const bool finite =
        kernels_.pack_v(v_rows_, from, to, dim_v, problem_.dtype, static_cast<int>(plan_.tile_keys), v_);
    const bool alike = tile_begin(num_rows_ - 1, base) <= begin && tile_end(0, base) >= end;
    poisoned_ = !finite && !alike;
    if (poisoned_) {
      replace_poison(from, to);
    }
  }
  for (int index = 0; index < num_blocks_; ++index) {
    run_block(block(index), base);
  }
}

void TaskRunner::finish() {
  for (int row = 0; row < num_rows_; ++row) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * plan_.o_stride;
    if (task_.partials != nullptr) {
      store_partial(context_, rows_[row], o_ + at, o_low_ + at, task_.partials + row * task_.partial_stride);
    } else {
      finish_row(context_, task_.sequence, task_.kv_head, task_.row_begin + row, rows_[row], o_ + at,
                 o_low_ + at);
    }
  }
}

void TaskRunner::run() {
  begin_rows();
  const std::int64_t begin = rows_[0].visible_begin;
  const std::int64_t end = rows_[num_rows_ - 1].visible_end;
  if (begin < end) {
    pack_queries();
    for (std::int64_t base = begin / plan_.tile_keys * plan_.tile_keys; base < end; base += plan_.tile_keys) {
      run_tile(base);
    }
  }
  finish();
}

}  // namespace

void run_task(const RunContext& context, const Task& task, char* scratch) {
  TaskRunner(context, task, scratch).run();
}

}  // namespace attn::cpu
