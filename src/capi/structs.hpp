// In-structs of the C ABI into those of the C++ API. Each is copied by min(size) over the defaults, so that a
// program built against an older header works; a larger one is taken if the unknown tail is zero.
// Nothing here allocates when all is well. Tested in tests/capi/struct_size_test.c.
#pragma once

#include <attn/attn.h>

#include <attn/attn.hpp>

namespace attn::capi {

Status read(const attn_problem_t* source, Problem* problem);
Status read(const attn_plan_options_t* source, PlanOptions* options);  // null: the defaults
Status read(const attn_tensors_t* source, Tensors* tensors);
Status read(const attn_forward_options_t* source, ForwardOptions* options);  // null: the defaults
// name: for messages. Null source: absent, which is refused here only if `required`.
Status read(const char* name, const attn_tensor_view_t* source, bool required, TensorView* view);

// Into a struct that its owner has initialised; no more than its struct_size is written.
Status write(const Problem& problem, attn_problem_t* target);

}  // namespace attn::capi
