/* Prints the layout of attn.h's structs as JSON: {"attn_problem_t": {"size": .., "fields": {"dtype": [offset,
 * size]}}}. tests/python compares the package's own declarations with it. */
#include <attn/attn.h>
#include <stdio.h>

#define FIELD(type, name) \
  printf("%s\"%s\": [%zu, %zu]", first++ ? ", " : "", #name, offsetof(type, name), sizeof(((type*)0)->name))
#define BEGIN(type) \
  first = 0, printf("%s\"%s\": {\"size\": %zu, \"fields\": {", types++ ? ", " : "", #type, sizeof(type))
#define END() printf("}}")

int main(void) {
  int first = 0, types = 0;
  printf("{");
  BEGIN(attn_tensor_view_t);
  FIELD(attn_tensor_view_t, struct_size);
  FIELD(attn_tensor_view_t, data);
  FIELD(attn_tensor_view_t, dtype);
  FIELD(attn_tensor_view_t, reserved);
  FIELD(attn_tensor_view_t, shape);
  FIELD(attn_tensor_view_t, strides);
  END();
  BEGIN(attn_problem_t);
  FIELD(attn_problem_t, struct_size);
  FIELD(attn_problem_t, dtype);
  FIELD(attn_problem_t, alignment);
  FIELD(attn_problem_t, batch);
  FIELD(attn_problem_t, seqlen_q);
  FIELD(attn_problem_t, seqlen_kv);
  FIELD(attn_problem_t, heads_q);
  FIELD(attn_problem_t, heads_kv);
  FIELD(attn_problem_t, head_dim_qk);
  FIELD(attn_problem_t, head_dim_v);
  FIELD(attn_problem_t, has_softmax_scale);
  FIELD(attn_problem_t, softmax_scale);
  FIELD(attn_problem_t, causal);
  FIELD(attn_problem_t, softcap);
  FIELD(attn_problem_t, window_left);
  FIELD(attn_problem_t, window_right);
  FIELD(attn_problem_t, sinks);
  FIELD(attn_problem_t, lse_with_sink);
  FIELD(attn_problem_t, alibi);
  FIELD(attn_problem_t, varlen_q);
  FIELD(attn_problem_t, varlen_kv);
  FIELD(attn_problem_t, seqused_kv);
  FIELD(attn_problem_t, total_q);
  FIELD(attn_problem_t, total_kv);
  FIELD(attn_problem_t, page_size);
  FIELD(attn_problem_t, num_pages);
  FIELD(attn_problem_t, seqlen_new);
  FIELD(attn_problem_t, rotary_dim);
  FIELD(attn_problem_t, rotary_style);
  FIELD(attn_problem_t, want_lse);
  FIELD(attn_problem_t, batch_invariant);
  FIELD(attn_problem_t, deterministic);
  FIELD(attn_problem_t, num_splits);
  END();
  BEGIN(attn_plan_options_t);
  FIELD(attn_plan_options_t, struct_size);
  FIELD(attn_plan_options_t, backend);
  FIELD(attn_plan_options_t, device);
  FIELD(attn_plan_options_t, threads);
  FIELD(attn_plan_options_t, reserved);
  FIELD(attn_plan_options_t, cpu_level);
  FIELD(attn_plan_options_t, kernel);
  END();
  BEGIN(attn_tensors_t);
  FIELD(attn_tensors_t, struct_size);
  FIELD(attn_tensors_t, q);
  FIELD(attn_tensors_t, k);
  FIELD(attn_tensors_t, v);
  FIELD(attn_tensors_t, o);
  FIELD(attn_tensors_t, lse);
  FIELD(attn_tensors_t, cu_seqlens_q);
  FIELD(attn_tensors_t, cu_seqlens_kv);
  FIELD(attn_tensors_t, seqused_kv);
  FIELD(attn_tensors_t, page_table);
  FIELD(attn_tensors_t, page_table_stride);
  FIELD(attn_tensors_t, k_new);
  FIELD(attn_tensors_t, v_new);
  FIELD(attn_tensors_t, rotary_cos);
  FIELD(attn_tensors_t, rotary_sin);
  FIELD(attn_tensors_t, sinks);
  FIELD(attn_tensors_t, alibi_slopes);
  FIELD(attn_tensors_t, alibi_batch_stride);
  END();
  printf("}\n");
  return 0;
}
