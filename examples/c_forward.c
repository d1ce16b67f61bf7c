/* Causal attention from C in one call: random q, k, v in memory order (batch, seqlen, heads, head_dim),
 * grouped-query. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBatch = 1, kSeqlen = 128, kHeadsQ = 8, kHeadsKv = 2, kHeadDim = 64 };

static float* random_floats(size_t count) {
  float* data = malloc(count * sizeof *data);
  for (size_t i = 0; data != NULL && i < count; ++i) {
    data[i] = (float)rand() / (float)RAND_MAX - 0.5F;
  }
  return data;
}

int main(void) {
  float* q = random_floats((size_t)kBatch * kSeqlen * kHeadsQ * kHeadDim);
  float* k = random_floats((size_t)kBatch * kSeqlen * kHeadsKv * kHeadDim);
  float* v = random_floats((size_t)kBatch * kSeqlen * kHeadsKv * kHeadDim);
  float* o = random_floats((size_t)kBatch * kSeqlen * kHeadsQ * kHeadDim);
  float* lse = random_floats((size_t)kBatch * kHeadsQ * kSeqlen);
  if (!q || !k || !v || !o || !lse) {
    return 1;
  }

  /* A view is a pointer, a dtype, a shape and strides; any strides will do as long as head_dim is contiguous.
   */
  attn_tensor_view_t q_view = attn_view_bshd(q, ATTN_FLOAT32, kBatch, kSeqlen, kHeadsQ, kHeadDim);
  attn_tensor_view_t k_view = attn_view_bshd(k, ATTN_FLOAT32, kBatch, kSeqlen, kHeadsKv, kHeadDim);
  attn_tensor_view_t v_view = attn_view_bshd(v, ATTN_FLOAT32, kBatch, kSeqlen, kHeadsKv, kHeadDim);
  attn_tensor_view_t o_view = attn_view_bshd(o, ATTN_FLOAT32, kBatch, kSeqlen, kHeadsQ, kHeadDim);
  attn_tensor_view_t lse_view = attn_view_lse(lse, kBatch, kHeadsQ, kSeqlen);

  attn_plan_options_t plan = ATTN_PLAN_OPTIONS_INIT;
  plan.backend = ATTN_BACKEND_CPU; /* malloc's memory is host memory */
  attn_forward_options_t options = ATTN_FORWARD_OPTIONS_INIT;
  options.causal = 1;
  options.alignment = ATTN_ALIGN_BOTTOM_RIGHT; /* named, never assumed */
  options.lse = &lse_view;
  options.plan = &plan;
  if (attn_forward(&q_view, &k_view, &v_view, &o_view, &options) != ATTN_OK) {
    fprintf(stderr, "libattn %s: %s\n", attn_version(), attn_last_error());
    return 1;
  }

  /* The first query sees the first key alone, so its output is that key's value. */
  float worst = 0;
  for (int d = 0; d < kHeadDim; ++d) {
    worst = fmaxf(worst, fabsf(o[d] - v[d]));
  }
  printf("o[0][0][0][0] = %f, v[0][0][0][0] = %f, lse of the last row = %f\n", o[0], v[0], lse[kSeqlen - 1]);
  free(q), free(k), free(v), free(o), free(lse);
  return worst < 1e-5F ? 0 : 1;
}
