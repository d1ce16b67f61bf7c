/* Attention small enough to do by hand, through every function of the C ABI that computes. In the common
 * subset of C99 and C++, so that one text is built as C11, as C++ with either std::string ABI, and against
 * the frozen header.
 *
 * q = (1, 0); k0 = (1, 0), k1 = (0, 1); scale ln 3: logits ln 3 and 0, so P = (3/4, 1/4) and LSE = ln 4.
 * v0 = (4, 0), v1 = (0, 8): O = (3, 2). A query that sees only key 0 has O = v0 and LSE = ln 3. */
#ifndef ATTN_TESTS_CAPI_HAND_VALUES_H_
#define ATTN_TESTS_CAPI_HAND_VALUES_H_

#include <stdlib.h>

#include "check.h"

static const float kHandQ[4] = {1, 0, 1, 0};
static const float kHandK[4] = {1, 0, 0, 1};
static const float kHandV[4] = {4, 0, 0, 8};

static void hand_values_by_plan(void) {
  float o[4] = {-1, -1, -1, -1};
  float lse[2] = {-1, -1};
  attn_problem_t problem = ATTN_PROBLEM_INIT;
  attn_plan_options_t options = ATTN_PLAN_OPTIONS_INIT;
  attn_tensors_t tensors = ATTN_TENSORS_INIT;
  attn_plan_t* plan = NULL;
  attn_tensor_view_t q = attn_view_bshd(kHandQ, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t k = attn_view_bshd(kHandK, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t v = attn_view_bhsd(kHandV, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t out = attn_view_bshd(o, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t out_lse = attn_view_lse(lse, 1, 1, 2);
  size_t bytes = 0;
  void* workspace = NULL;
  char text[1024];
  size_t length = 0;
  attn_backend_t backend = -1;

  CHECK_OK(attn_problem_parse("b1 hq1 hk1 sq2 sk2 d2 fp32 causal=br lse", &problem));
  problem.has_softmax_scale = 1;
  problem.softmax_scale = logf(3.0F);
  options.backend = ATTN_BACKEND_CPU;
  CHECK_OK(attn_validate(&problem));
  CHECK_OK(attn_plan_create(&problem, &options, &plan));
  CHECK_OK(attn_plan_workspace_bytes(plan, &bytes));
  CHECK_OK(attn_plan_backend(plan, &backend));
  CHECK(backend == ATTN_BACKEND_CPU);
  CHECK_OK(attn_plan_explain(plan, text, sizeof text, &length));
  CHECK(length == strlen(text) && strstr(text, "backend: cpu") != NULL);

  tensors.q = &q, tensors.k = &k, tensors.v = &v, tensors.o = &out, tensors.lse = &out_lse;
  if (bytes > 0) {
    workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  CHECK_OK(attn_validate_tensors(&problem, &tensors, 1));
  CHECK_OK(attn_run(plan, &tensors, workspace, bytes, NULL));
  CHECK_NEAR(o[0], 4, 1e-6);
  CHECK_NEAR(o[1], 0, 1e-6);
  CHECK_NEAR(o[2], 3, 1e-5);
  CHECK_NEAR(o[3], 2, 1e-5);
  CHECK_NEAR(lse[0], log(3.0), 1e-5);
  CHECK_NEAR(lse[1], log(4.0), 1e-5);
  free(workspace);
  attn_plan_destroy(plan);
}

static void hand_values_by_forward(void) {
  float o[4] = {-1, -1, -1, -1};
  float lse[2] = {-1, -1};
  attn_forward_options_t options = ATTN_FORWARD_OPTIONS_INIT;
  attn_plan_options_t plan = ATTN_PLAN_OPTIONS_INIT;
  attn_tensor_view_t q = attn_view_bshd(kHandQ, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t k = attn_view_bshd(kHandK, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t v = attn_view_bshd(kHandV, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t out = attn_view_bshd(o, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t out_lse = attn_view_lse(lse, 1, 1, 2);
  plan.backend = ATTN_BACKEND_CPU;
  options.has_softmax_scale = 1;
  options.softmax_scale = logf(3.0F);
  options.plan = &plan;
  options.lse = &out_lse;
  CHECK_OK(attn_forward(&q, &k, &v, &out, &options));
  CHECK_NEAR(o[0], 3, 1e-5);
  CHECK_NEAR(o[1], 2, 1e-5);
  CHECK_NEAR(o[2], 3, 1e-5);
  CHECK_NEAR(o[3], 2, 1e-5);
  CHECK_NEAR(lse[0], log(4.0), 1e-5);
  CHECK_NEAR(lse[1], log(4.0), 1e-5);
}

/* Key 0 alone gives (v0, ln 3), key 1 alone (v1, 0): merged they are the whole. */
static void hand_values_by_merge(void) {
  float o0[2] = {4, 0}, o1[2] = {0, 8}, lse0 = logf(3.0F), lse1 = 0, o[2] = {-1, -1}, lse = -1;
  attn_tensor_view_t a = attn_view_bshd(o0, ATTN_FLOAT32, 1, 1, 1, 2), la = attn_view_lse(&lse0, 1, 1, 1);
  attn_tensor_view_t b = attn_view_bshd(o1, ATTN_FLOAT32, 1, 1, 1, 2), lb = attn_view_lse(&lse1, 1, 1, 1);
  attn_tensor_view_t out = attn_view_bshd(o, ATTN_FLOAT32, 1, 1, 1, 2),
                     out_lse = attn_view_lse(&lse, 1, 1, 1);
  const attn_tensor_view_t* os[2];
  const attn_tensor_view_t* lses[2];
  os[0] = &a, os[1] = &b, lses[0] = &la, lses[1] = &lb;
  CHECK_OK(attn_merge_partials(2, os, lses, &out, &out_lse));
  CHECK_NEAR(o[0], 3, 1e-5);
  CHECK_NEAR(o[1], 2, 1e-5);
  CHECK_NEAR(lse, log(4.0), 1e-5);
}

static int hand_values(void) {
  hand_values_by_plan();
  hand_values_by_forward();
  hand_values_by_merge();
  return done();
}

#endif
