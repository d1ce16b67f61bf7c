/* Times attn_run and attn_forward from C, for bench/python_overhead.py: nanoseconds of each call, into a
 * caller's array. Built and loaded by that script; not part of the build. */
#include <attn/attn.h>
#include <time.h>

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

attn_status_t time_run(const attn_plan_t* plan, const attn_tensors_t* tensors, void* workspace, size_t bytes,
                       int64_t calls, int64_t* ns) {
  for (int64_t i = 0; i < calls; ++i) {
    const int64_t begin = now();
    const attn_status_t status = attn_run(plan, tensors, workspace, bytes, NULL);
    ns[i] = now() - begin;
    if (status != ATTN_OK) {
      return status;
    }
  }
  return ATTN_OK;
}

attn_status_t time_forward(const attn_tensors_t* tensors, int64_t calls, int64_t* ns) {
  for (int64_t i = 0; i < calls; ++i) {
    const int64_t begin = now();
    const attn_status_t status = attn_forward(tensors->q, tensors->k, tensors->v, tensors->o, NULL);
    ns[i] = now() - begin;
    if (status != ATTN_OK) {
      return status;
    }
  }
  return ATTN_OK;
}
