/* How structs grow: smaller ones (an older header) work, larger ones (a newer header) only if what this
 * library does not know is zero, and the refusal says so. */
#include <attn/attn.h>
#include <stdlib.h>

#include "check.h"

static void smaller_problem_has_defaults(void) {
  attn_problem_t problem = ATTN_PROBLEM_INIT;
  attn_problem_t full = ATTN_PROBLEM_INIT;
  char text[256], wanted[256];
  const size_t first = offsetof(attn_problem_t, has_softmax_scale);
  problem.seqlen_q = full.seqlen_q = 7;
  problem.struct_size = first;
  memset((char*)&problem + first, 0x55, sizeof problem - first); /* not the client's: must not be read */
  CHECK_OK(attn_problem_to_string(&problem, text, sizeof text, NULL));
  CHECK_OK(attn_problem_to_string(&full, wanted, sizeof wanted, NULL));
  CHECK(strcmp(text, wanted) == 0);

  /* One field more than the first ones: window_left is the client's, window_right the default. */
  problem = full;
  problem.alignment = ATTN_ALIGN_BOTTOM_RIGHT;
  problem.window_left = 3;
  problem.window_right = 5;
  problem.struct_size = offsetof(attn_problem_t, window_right);
  CHECK_OK(attn_problem_to_string(&problem, text, sizeof text, NULL));
  CHECK(strstr(text, "window=3,-1") != NULL);
}

static void parse_writes_no_more_than_the_struct(void) {
  attn_problem_t problem = ATTN_PROBLEM_INIT;
  const size_t first = offsetof(attn_problem_t, has_softmax_scale);
  unsigned char* bytes = (unsigned char*)&problem;
  size_t i, untouched = 0;
  problem.struct_size = first;
  memset(bytes + first, 0x55, sizeof problem - first);
  CHECK_OK(attn_problem_parse("sq9 d64 fp16", &problem));
  CHECK(problem.seqlen_q == 9 && problem.dtype == ATTN_FLOAT16 && problem.struct_size == first);
  for (i = first; i < sizeof problem; ++i) {
    untouched += bytes[i] == 0x55;
  }
  CHECK(untouched == sizeof problem - first);
  /* What it sets has no place in that struct. */
  CHECK_REFUSED(attn_problem_parse("sq9 d64 fp16 causal=br window=1,0", &problem), ATTN_INVALID_ARGUMENT,
                "struct_size");
}

typedef struct {
  attn_problem_t known;
  int64_t unknown[2];
} newer_problem_t;

typedef struct {
  attn_tensors_t known;
  int64_t unknown;
} newer_tensors_t;

typedef struct {
  attn_tensor_view_t known;
  int64_t unknown;
} newer_view_t;

typedef struct {
  attn_plan_options_t known;
  int64_t unknown;
} newer_options_t;

typedef struct {
  attn_forward_options_t known;
  int64_t unknown;
} newer_forward_t;

static void larger_structs(void) {
  newer_problem_t problem = {ATTN_PROBLEM_INIT, {0, 0}};
  newer_tensors_t tensors = {ATTN_TENSORS_INIT, 0};
  newer_view_t q = {ATTN_TENSOR_VIEW_INIT, 0};
  newer_options_t options = {ATTN_PLAN_OPTIONS_INIT, 0};
  newer_forward_t forward = {ATTN_FORWARD_OPTIONS_INIT, 0};
  float data[1] = {2}, o[1] = {0};
  attn_tensor_view_t kv = attn_view_bshd(data, ATTN_FLOAT32, 1, 1, 1, 1);
  attn_tensor_view_t out = attn_view_bshd(o, ATTN_FLOAT32, 1, 1, 1, 1);
  attn_plan_t* plan = NULL;

  problem.known.dtype = ATTN_FLOAT32;
  problem.known.head_dim_qk = problem.known.head_dim_v = 1;
  problem.known.struct_size = sizeof problem;
  tensors.known.struct_size = sizeof tensors;
  options.known.struct_size = sizeof options;
  options.known.backend = ATTN_BACKEND_CPU;
  forward.known.struct_size = sizeof forward;
  q.known = kv;
  q.known.struct_size = sizeof q;
  tensors.known.q = &q.known, tensors.known.k = &kv, tensors.known.v = &kv, tensors.known.o = &out;

  CHECK_OK(attn_validate(&problem.known));
  CHECK_OK(attn_plan_create(&problem.known, &options.known, &plan));
  CHECK_OK(attn_validate_tensors(&problem.known, &tensors.known, 1));
  CHECK_OK(attn_forward(&q.known, &kv, &kv, &out, &forward.known));
  CHECK_NEAR(o[0], 2, 0);

  attn_plan_destroy(plan);

  problem.unknown[1] = (int64_t)1 << 40; /* any byte of the tail counts */
  CHECK_REFUSED(attn_validate(&problem.known), ATTN_INVALID_ARGUMENT, "newer attn.h");
  problem.unknown[1] = 0;
  options.unknown = 1;
  CHECK_REFUSED(attn_plan_create(&problem.known, &options.known, &plan), ATTN_INVALID_ARGUMENT,
                "newer attn.h");
  CHECK(plan == NULL);
  tensors.unknown = 1;
  CHECK_REFUSED(attn_validate_tensors(&problem.known, &tensors.known, 1), ATTN_INVALID_ARGUMENT,
                "tensors, byte");
  forward.unknown = 1;
  o[0] = 0;
  CHECK_REFUSED(attn_forward(&kv, &kv, &kv, &out, &forward.known), ATTN_INVALID_ARGUMENT, "options, byte");
  q.unknown = 1;
  CHECK_REFUSED(attn_forward(&q.known, &kv, &kv, &out, NULL), ATTN_INVALID_ARGUMENT, "q, byte");
  CHECK_NEAR(o[0], 0, 0); /* refused before anything is written */
}

static void sizes_that_no_header_has(void) {
  static const size_t sizes[] = {0, 8, 4, 64, 73, 196, 4104, (size_t)-1, (size_t)-8, 0x5555555555555555U};
  size_t i;
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    attn_problem_t problem = ATTN_PROBLEM_INIT;
    attn_tensor_view_t view = ATTN_TENSOR_VIEW_INIT;
    attn_tensors_t tensors = ATTN_TENSORS_INIT;
    problem.struct_size = view.struct_size = tensors.struct_size = sizes[i];
    CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "problem.struct_size");
    CHECK_REFUSED(attn_problem_parse("sq1 d1 fp32", &problem), ATTN_INVALID_ARGUMENT, "ATTN_PROBLEM_INIT");
    CHECK_REFUSED(attn_forward(&view, &view, &view, &view, NULL), ATTN_INVALID_ARGUMENT, "q.struct_size");
    problem.struct_size = sizeof problem;
    CHECK_REFUSED(attn_validate_tensors(&problem, &tensors, 0), ATTN_INVALID_ARGUMENT, "ATTN_TENSORS_INIT");
  }
}

int main(void) {
  smaller_problem_has_defaults();
  parse_writes_no_more_than_the_struct();
  larger_structs();
  sizes_that_no_header_has();
  return done();
}
