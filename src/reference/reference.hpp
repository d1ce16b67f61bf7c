// The judge: attention of one row in float64, on the rounded inputs, by the words of the contract and with
// no cleverness. It shares no mask, loop or addressing code with any backend. Host memory only.
// Tested by hand-computed cases in tests/unit/reference_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <cstdint>

namespace attn::reference {

struct Row {
  double lse = 0;        // natural log; −inf for an empty row
  double max_abs_v = 0;  // max |v_j,c| over visible keys and all channels (0 if none)
  double logit_error = 0;  // max_j |scale| · Σ_c |q_c k_c| over visible keys: the ε of rule 13 is 2⁻²² of it
  std::int64_t visible = 0;  // number of visible keys
};

// Query row i (within its sequence) of query head h of batch entry b. `o` receives head_dim_v values.
// With an append, the caches must already hold the new keys (see append) and q is rotated on the fly.
Row forward_row(const Problem& problem, const Tensors& tensors, std::int64_t b, std::int64_t h,
                std::int64_t i, double* o);

// Writes k_new (rotated where asked) and v_new into the caches, as rule 9 says. The rotation is defined
// exactly: products and difference each rounded to fp32, the result rounded to the dtype; so every backend
// must match bit for bit.
void append(const Problem& problem, const Tensors& tensors);

}  // namespace attn::reference
