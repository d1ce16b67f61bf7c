// From running sums to results: O, LSE, sinks, empty rows, and the combination of splits.
// Tested in tests/unit/cpu_attention_test.cpp and tests/conformance.
#pragma once

#include "cpu/tile.hpp"

namespace attn::cpu {

// Writes O and LSE of packed row r. o and o_low: head_dim_v unnormalised sums (relative to the row's max) and
// what rounding lost from them.
void finish_row(const RunContext& context, const core::Sequence& s, std::int64_t kv_head, std::int64_t r,
                const RowState& row, const float* o, const float* o_low);

// A partial result: unnormalised O, max, sum.
void store_partial(const RunContext& context, const RowState& row, const float* o, const float* o_low,
                   float* partial);

// Combines the `count` partial results of each packed row in [row_begin, row_end) and finishes the rows.
// o, o_low: scratch of head_dim_v floats.
void combine_rows(const RunContext& context, const core::Sequence& s, std::int64_t kv_head,
                  std::int64_t row_begin, std::int64_t row_end, std::int64_t count, float* o, float* o_low);

// Visible keys and ALiBi frame of packed row r; max, sum of a row that has seen nothing.
RowState begin_row(const RunContext& context, const core::Sequence& s, std::int64_t kv_head, std::int64_t r);

// The partial results of packed row r of a sequence: one after another for its splits.
float* partials_of(const RunContext& context, const core::Sequence& s, std::int64_t kv_head, std::int64_t r);

}  // namespace attn::cpu
