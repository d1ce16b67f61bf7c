// Rotary embedding and the writing of new keys and values into a cache, bit for bit as rule 9 and
// reference::append define them. Tested in tests/unit/cpu_append_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>

namespace attn::cpu {

// Rotates the rotary_dim leading channels of one row in place: products and their sum each rounded to fp32,
// the result rounded to the dtype.
void rotate_row(const Problem& p, const Tensors& t, std::int64_t position, float* row);

// Writes k_new (rotated where asked) and v_new of batch entry b, key/value head h. row: scratch of
// head_dim_qk floats.
void append_head(const Problem& p, const Tensors& t, std::int64_t b, std::int64_t h, float* row);

}  // namespace attn::cpu
