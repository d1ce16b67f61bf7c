// The work of one task: see tile.hpp for what it is. Split over tile.cpp (the loop over tiles, blocks and
// their steps) and tile_exact.cpp (elements that the packed products must not meet). For these two files
// only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/amx.hpp"
#include "cpu/tile.hpp"

namespace attn::cpu {

class TaskRunner {
 public:
  // slot: of the heads that are taken together.
  TaskRunner(const RunContext& context, const Task& task, char* scratch, std::int64_t slot)
      : context_(context),
        plan_(context.plan),
        direct_(context.plan.group * task.sequence.seqlen_q <= kDirectRows),
        kernels_(direct_ ? *context.plan.kernels : *context.plan.tile_kernels),
        problem_(context.problem),
        task_(task),
        num_rows_(static_cast<int>(task.row_end - task.row_begin)),
        q_(part<float>(scratch, plan_.scratch.q + head_offset(slot))),
        q_row_(part<float>(scratch, plan_.scratch.q_row)),
        k_(part<float>(scratch, plan_.scratch.k)),
        v_(part<float>(scratch, plan_.scratch.v)),
        v_small_(part<float>(scratch, plan_.scratch.v_small)),
        stage_(part<float>(scratch, plan_.scratch.stage)),
        s_(part<float>(scratch, plan_.scratch.s)),
        o_(part<float>(scratch, plan_.scratch.o + head_offset(slot))),
        o_low_(part<float>(scratch, plan_.scratch.o_low + head_offset(slot))),
        o_small_(part<float>(scratch, plan_.scratch.o_small)),
        o_small_low_(part<float>(scratch, plan_.scratch.o_small_low)),
        rows_(part<RowState>(scratch, plan_.scratch.rows + head_offset(slot))),
        row_max_(part<float>(scratch, plan_.scratch.row_max + head_offset(slot))),
        row_sum_(part<float>(scratch, plan_.scratch.row_sum + head_offset(slot))),
        row_sum_low_(part<float>(scratch, plan_.scratch.row_sum_low + head_offset(slot))),
        k_rows_(part<const void*>(scratch, plan_.scratch.k_rows)),
        v_rows_(part<const void*>(scratch, plan_.scratch.v_rows)) {}

  void begin();
  void run_tile(std::int64_t base);
  void finish();
  [[nodiscard]] const KernelTable& kernels() const { return kernels_; }
  // First tile and end of the keys that some row sees.
  [[nodiscard]] std::int64_t first_key() const {
    return rows_[0].visible_begin / plan_.tile_keys * plan_.tile_keys;
  }
  [[nodiscard]] std::int64_t end_key() const {
    return rows_[0].visible_begin < rows_[num_rows_ - 1].visible_end ? rows_[num_rows_ - 1].visible_end : 0;
  }

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

  [[nodiscard]] std::size_t head_offset(std::int64_t slot) const {
    return static_cast<std::size_t>(slot) * plan_.scratch.head_bytes;
  }

  [[nodiscard]] Block block(int index) const {
    const int first = index * block_rows_;
    const int count = std::min(block_rows_, num_rows_ - first);
    const int granule = direct_ ? 1 : kernels_.block_granule;
    return {first, count, (count + granule - 1) / granule * granule};
  }

  void begin_rows();
  [[nodiscard]] const void* query(int row) const;
  void load_query(int row, float* out) const;
  [[nodiscard]] const void* packed_queries(const Block& block) const;
  [[nodiscard]] float* packed_keys(int key) const;
  void pack_queries();
  void prefetch_row(const void* row) const;
  void pack_tile(int begin, int end);
  void list_rows(const TensorView& tensor, std::int64_t base, int begin, int end, const void** rows) const;
  void run_block(const Block& block, std::int64_t base);
  void score(const Block& block, int begin, int end);
  void transform(const Block& block, std::int64_t base, int begin, int end);
  void hide_invisible(const Block& block, std::int64_t base, int begin, int end);
  void softmax(const Block& block, int begin, int end, float* rescale);
  void accumulate(const Block& block, std::int64_t base, const float* rescale, int begin, int end);

  // tile_exact.cpp: what the packed products must not do.
  void flag_queries(const Block& block);
  void flag_keys(int begin, int end);
  void rescore(const Block& block, int begin, int end);
  void begin_small();
  void accumulate_small(const Block& block, const float* rescale, int begin, int end);
  void add_small(int row);
  void replace_poison(int begin, int end);
  void add_poison(const Block& block, std::int64_t base, int begin, int end);

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
  const bool direct_;
  const KernelTable& kernels_;
  const Problem& problem_;
  const Task task_;
  const int num_rows_;
  int block_rows_ = 0;
  int num_blocks_ = 0;
  float factor_ = 0;         // of q·k: into the log2 domain, or into the natural one where a softcap follows
  float deferred_ = 1;       // the part of factor_ that the softmax applies
  bool small_ = false;       // the V tile holds values too small for the products, which are in v_small_
  bool sums_small_ = false;  // … or one before did: o_small_ has their sums
  bool poisoned_ = false;    // the V tile holds elements that the products must not meet
  bool poison_[kMaxTileKeys] = {};  // … which keys
  bool inexact_queries_ = false;    // some query row holds elements that do not fit the products
  bool inexact_keys_ = false;       // … some key of the tile
  bool inexact_key_[kMaxTileKeys] = {};

  float* q_;
  float* q_row_;
  float* k_;
  float* v_;
  float* v_small_;
  float* stage_;
  float* s_;
  float* o_;
  float* o_low_;
  float* o_small_;  // times kSmallScale
  float* o_small_low_;
  RowState* rows_;
  float* row_max_;  // as RowState's, while the tiles are gone through
  float* row_sum_;
  float* row_sum_low_;
  const void** k_rows_;
  const void** v_rows_;
};

}  // namespace attn::cpu
