// One task of a run: a block of packed query rows of one sequence and key/value head against a range of key
// tiles, by online softmax. Tested by tests/unit/cpu_attention_test.cpp and tests/conformance.
#pragma once

#include <cstdint>

#include "core/geometry.hpp"
#include "cpu/plan.hpp"

namespace attn::cpu {

// What all tasks of a run share.
struct RunContext {
  const CpuPlan& plan;
  const Problem& problem;
  const Tensors& tensors;
  char* workspace;
};

// What a row carries from tile to tile. Logits are in the log2 domain; with ALiBi they are relative to the
// row's reference key, the visible one with the largest bias: far keys then have large biases and tiny
// probabilities, so that rounding a bias does not matter.
struct RowState {
  std::int64_t visible_begin = 0;  // keys that the row sees, cut to the task's
  std::int64_t visible_end = 0;
  std::int64_t reference_key = 0;
  double shift = 0;  // natural-log bias of the reference key, which the logits lack
  float slope_log2 = 0;
  bool unfit_query = false;  // holds elements that the products of tiles do not take for what they are
  float max = 0;
  float sum = 0;
  float sum_low = 0;
};

struct Task {
  core::Sequence sequence;
  std::int64_t kv_head = 0;    // the first of CpuPlan::heads_together
  std::int64_t row_begin = 0;  // packed rows
  std::int64_t row_end = 0;
  std::int64_t key_begin = 0;  // a multiple of tile_keys
  std::int64_t key_end = 0;
  // Null: O and LSE are written. Else the first partial result of the rows, head_dim_v + 2 floats each.
  float* partials = nullptr;
  std::int64_t partial_stride = 0;       // floats from a row's to the next row's
  std::int64_t partial_head_stride = 0;  // … from a head's to the next head's
};

void run_task(const RunContext& context, const Task& task, char* scratch);

}  // namespace attn::cpu
