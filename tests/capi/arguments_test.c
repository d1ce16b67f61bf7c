/* Null and garbage in every argument gives a status and a message, never a signal; the call after a refused
 * one works. The message belongs to the thread. */
#include <attn/attn.h>
#include <pthread.h>
#include <stdlib.h>

#include "check.h"

static attn_problem_t small_problem(void) {
  attn_problem_t problem = ATTN_PROBLEM_INIT;
  problem.dtype = ATTN_FLOAT32;
  problem.head_dim_qk = problem.head_dim_v = 2;
  return problem;
}

static void status_strings(void) {
  attn_status_t status;
  CHECK(strcmp(attn_last_error(), "") == 0); /* nothing has failed on this thread yet */
  for (status = ATTN_OK; status <= ATTN_INTERNAL; ++status) {
    CHECK(strcmp(attn_status_string(status), "unknown status") != 0);
  }
  CHECK(strcmp(attn_status_string(ATTN_OK), "ok") == 0);
  CHECK(strcmp(attn_status_string(-5), "unknown status") == 0);
  CHECK(strcmp(attn_status_string(INT32_MAX), "unknown status") == 0);
  CHECK(strlen(attn_version()) >= 5);
}

static void null_arguments(void) {
  attn_problem_t problem = small_problem();
  attn_tensors_t tensors = ATTN_TENSORS_INIT;
  attn_tensor_view_t view = ATTN_TENSOR_VIEW_INIT;
  const attn_tensor_view_t* views[1];
  const attn_tensor_view_t* nothing[1] = {NULL};
  attn_plan_t* plan = NULL;
  size_t size = 0;
  int32_t number = 0;
  char text[8];
  views[0] = &view;

  CHECK_REFUSED(attn_problem_parse(NULL, &problem), ATTN_INVALID_ARGUMENT, "text");
  CHECK_REFUSED(attn_problem_parse("sq1 d1 fp32", NULL), ATTN_INVALID_ARGUMENT, "problem");
  CHECK_REFUSED(attn_problem_to_string(NULL, text, 8, &size), ATTN_INVALID_ARGUMENT, "problem");
  CHECK_REFUSED(attn_problem_to_string(&problem, NULL, 8, &size), ATTN_INVALID_ARGUMENT, "buffer");
  CHECK_OK(attn_problem_to_string(&problem, NULL, 0, NULL));
  CHECK_REFUSED(attn_validate(NULL), ATTN_INVALID_ARGUMENT, "problem");
  CHECK_REFUSED(attn_validate_tensors(NULL, &tensors, 0), ATTN_INVALID_ARGUMENT, "problem");
  CHECK_REFUSED(attn_validate_tensors(&problem, NULL, 0), ATTN_INVALID_ARGUMENT, "tensors");
  CHECK_REFUSED(attn_validate_tensors(&problem, &tensors, 0), ATTN_INVALID_ARGUMENT, "q is null");
  CHECK_REFUSED(attn_support(NULL, NULL, ATTN_BACKEND_CPU, &number, text, 8, &size), ATTN_INVALID_ARGUMENT,
                "problem");
  CHECK_REFUSED(attn_support(&problem, NULL, ATTN_BACKEND_CPU, NULL, text, 8, &size), ATTN_INVALID_ARGUMENT,
                "supported");
  CHECK_REFUSED(attn_support(&problem, NULL, ATTN_BACKEND_CPU, &number, NULL, 8, &size),
                ATTN_INVALID_ARGUMENT, "buffer");
  CHECK_REFUSED(attn_support(&problem, NULL, 77, &number, text, 8, &size), ATTN_INVALID_ARGUMENT,
                "backend is 77");
  CHECK_REFUSED(attn_plan_create(NULL, NULL, &plan), ATTN_INVALID_ARGUMENT, "problem");
  CHECK_REFUSED(attn_plan_create(&problem, NULL, NULL), ATTN_INVALID_ARGUMENT, "plan");
  attn_plan_destroy(NULL);
  CHECK_REFUSED(attn_plan_workspace_bytes(NULL, &size), ATTN_INVALID_ARGUMENT, "plan");
  CHECK_REFUSED(attn_plan_backend(NULL, &number), ATTN_INVALID_ARGUMENT, "plan");
  CHECK_REFUSED(attn_plan_num_splits(NULL, &number), ATTN_INVALID_ARGUMENT, "plan");
  CHECK_REFUSED(attn_plan_kernel(NULL, text, 8, &size), ATTN_INVALID_ARGUMENT, "plan");
  CHECK_REFUSED(attn_plan_explain(NULL, text, 8, &size), ATTN_INVALID_ARGUMENT, "plan");
  CHECK_REFUSED(attn_run(NULL, &tensors, NULL, 0, NULL), ATTN_INVALID_ARGUMENT, "plan");
  CHECK_REFUSED(attn_forward(NULL, &view, &view, &view, NULL), ATTN_INVALID_ARGUMENT, "q is null");
  CHECK_REFUSED(attn_forward(&view, NULL, &view, &view, NULL), ATTN_INVALID_ARGUMENT, "k is null");
  CHECK_REFUSED(attn_forward(&view, &view, NULL, &view, NULL), ATTN_INVALID_ARGUMENT, "v is null");
  CHECK_REFUSED(attn_forward(&view, &view, &view, NULL, NULL), ATTN_INVALID_ARGUMENT, "o is null");
  CHECK_REFUSED(attn_merge_partials(0, views, views, &view, NULL), ATTN_INVALID_ARGUMENT, "num_partials");
  CHECK_REFUSED(attn_merge_partials(SIZE_MAX, views, views, &view, NULL), ATTN_INVALID_ARGUMENT,
                "num_partials");
  CHECK_REFUSED(attn_merge_partials(1, NULL, views, &view, NULL), ATTN_INVALID_ARGUMENT, "o_partials");
  CHECK_REFUSED(attn_merge_partials(1, views, NULL, &view, NULL), ATTN_INVALID_ARGUMENT, "lse_partials");
  CHECK_REFUSED(attn_merge_partials(1, nothing, views, &view, NULL), ATTN_INVALID_ARGUMENT, "o_partials[0]");
  CHECK_REFUSED(attn_merge_partials(1, views, nothing, &view, NULL), ATTN_INVALID_ARGUMENT,
                "lse_partials[0]");
  CHECK_REFUSED(attn_merge_partials(1, views, views, NULL, NULL), ATTN_INVALID_ARGUMENT, "o is null");
}

static void garbage_handles(void) {
  uint64_t zeros[16] = {0};
  uint64_t ones[16];
  attn_tensors_t tensors = ATTN_TENSORS_INIT;
  size_t size = 0;
  memset(ones, 0xFF, sizeof ones);
  CHECK_REFUSED(attn_plan_workspace_bytes((const attn_plan_t*)(const void*)zeros, &size),
                ATTN_INVALID_ARGUMENT, "not a plan");
  CHECK_REFUSED(attn_plan_workspace_bytes((const attn_plan_t*)(const void*)ones, &size),
                ATTN_INVALID_ARGUMENT, "not a plan");
  CHECK_REFUSED(attn_run((const attn_plan_t*)(const void*)((char*)zeros + 1), &tensors, NULL, 0, NULL),
                ATTN_INVALID_ARGUMENT, "not a plan");
  attn_plan_destroy((attn_plan_t*)(void*)ones); /* ignored */
}

static void garbage_fields(void) {
  static const int32_t kGarbage[] = {-1, 2, 77, INT32_MIN, INT32_MAX};
  size_t i, f;
  for (i = 0; i < sizeof kGarbage / sizeof kGarbage[0]; ++i) {
    attn_problem_t problem;
    int32_t* const flags[] = {&problem.has_softmax_scale, &problem.causal,       &problem.sinks,
                              &problem.lse_with_sink,     &problem.alibi,        &problem.varlen_q,
                              &problem.varlen_kv,         &problem.seqused_kv,   &problem.want_lse,
                              &problem.batch_invariant,   &problem.deterministic};
    for (f = 0; f < sizeof flags / sizeof flags[0]; ++f) {
      problem = small_problem();
      *flags[f] = kGarbage[i];
      CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "allowed: 0 or 1");
    }
    problem = small_problem();
    problem.rotary_style = kGarbage[i];
    CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "rotary_style");
    problem = small_problem();
    problem.dtype = kGarbage[i] == 2 ? 3 : kGarbage[i];
    CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "dtype");
    problem = small_problem();
    problem.alignment = kGarbage[i] == 2 ? 3 : kGarbage[i];
    CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "alignment");
  }
}

static void softmax_scale_must_be_announced(void) {
  attn_problem_t problem = small_problem();
  problem.softmax_scale = 0.125F;
  CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "has_softmax_scale");
  problem.has_softmax_scale = 1;
  CHECK_OK(attn_validate(&problem));
  problem.softmax_scale = NAN;
  CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "softmax_scale");
  problem.has_softmax_scale = 0;
  CHECK_REFUSED(attn_validate(&problem), ATTN_INVALID_ARGUMENT, "softmax_scale");
}

static void options_and_views(void) {
  attn_problem_t problem = small_problem();
  attn_plan_options_t options = ATTN_PLAN_OPTIONS_INIT;
  attn_plan_t* plan = (attn_plan_t*)(void*)&problem;
  attn_tensor_view_t view = ATTN_TENSOR_VIEW_INIT;
  char name[512];
  options.backend = 9;
  CHECK_REFUSED(attn_plan_create(&problem, &options, &plan), ATTN_INVALID_ARGUMENT, "backend is 9");
  CHECK(plan == NULL);
  options.backend = ATTN_BACKEND_CPU;
  options.threads = -3;
  CHECK_REFUSED(attn_plan_create(&problem, &options, &plan), ATTN_INVALID_ARGUMENT, "threads is -3");
  options.threads = 0;
  options.reserved = 5;
  CHECK_REFUSED(attn_plan_create(&problem, &options, &plan), ATTN_INVALID_ARGUMENT, "reserved");
  options.reserved = 0;
  options.cpu_level = "no such level";
  CHECK(attn_plan_create(&problem, &options, &plan) != ATTN_OK);
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  options.cpu_level = name;
  CHECK_REFUSED(attn_plan_create(&problem, &options, &plan), ATTN_INVALID_ARGUMENT, "cpu_level");
  CHECK(plan == NULL);
  options.cpu_level = NULL;
  options.kernel = name;
  CHECK_REFUSED(attn_plan_create(&problem, &options, &plan), ATTN_INVALID_ARGUMENT, "options.kernel");
  options.kernel = "no such kernel";
  CHECK_REFUSED(attn_plan_create(&problem, &options, &plan), ATTN_UNSUPPORTED, "kernel is no such kernel");
  CHECK(plan == NULL);
  view.dtype = 12;
  CHECK_REFUSED(attn_forward(&view, &view, &view, &view, NULL), ATTN_INVALID_ARGUMENT, "q.dtype is 12");
  view.dtype = ATTN_FLOAT32;
  view.reserved = 1;
  CHECK_REFUSED(attn_forward(&view, &view, &view, &view, NULL), ATTN_INVALID_ARGUMENT, "q.reserved");
}

static void text_is_cut_and_measured(void) {
  attn_problem_t problem = small_problem();
  char text[64] = "untouched";
  size_t length = 0;
  CHECK_OK(attn_problem_to_string(&problem, text, 5, &length));
  CHECK(strcmp(text, "b1 h") == 0 && length == strlen("b1 hq1 hk1 sq1 sk1 d2 fp32"));
  CHECK_OK(attn_problem_to_string(&problem, text, length + 1, &length));
  CHECK(strcmp(text, "b1 hq1 hk1 sq1 sk1 d2 fp32") == 0);
  CHECK_OK(attn_problem_to_string(&problem, text, 1, &length));
  CHECK(text[0] == '\0');
}

static void* other_thread(void* unused) {
  CHECK(strcmp(attn_last_error(), "") == 0);
  CHECK_REFUSED(attn_problem_parse("nonsense", NULL), ATTN_INVALID_ARGUMENT, "problem is null");
  return unused;
}

static void message_is_the_threads_own(void) {
  pthread_t thread;
  attn_problem_t problem = small_problem();
  CHECK_REFUSED(attn_problem_parse("q?", &problem), ATTN_INVALID_ARGUMENT, "'q?'");
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK(strstr(attn_last_error(), "'q?'") != NULL);
  CHECK_OK(attn_validate(&problem)); /* success leaves the message alone */
  CHECK(strstr(attn_last_error(), "'q?'") != NULL);
}

static void long_messages_are_cut(void) {
  char* text = malloc(100001);
  attn_problem_t problem = small_problem();
  memset(text, 'x', 100000);
  text[100000] = '\0';
  CHECK_REFUSED(attn_problem_parse(text, &problem), ATTN_INVALID_ARGUMENT, "xxx");
  CHECK(strlen(attn_last_error()) < 1024);
  free(text);
}

int main(void) {
  status_strings();
  null_arguments();
  garbage_handles();
  garbage_fields();
  softmax_scale_must_be_announced();
  options_and_views();
  text_is_cut_and_measured();
  message_is_the_threads_own();
  long_messages_are_cut();
  return done();
}
