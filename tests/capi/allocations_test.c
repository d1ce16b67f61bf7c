/* attn_run allocates nothing when all is well: every allocation of the process passes the functions below.
 * Problems with names and indices longer than a std::string keeps in place are among them. */
#include <attn/attn.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the names are glibc's */
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static atomic_int watching;
static atomic_long allocations;

static void seen(void) {
  if (atomic_load(&watching)) {
    atomic_fetch_add(&allocations, 1);
  }
}
void* malloc(size_t size) {
  return seen(), __libc_malloc(size);
}
void* calloc(size_t n, size_t size) {
  return seen(), __libc_calloc(n, size);
}
void* realloc(void* old, size_t size) {
  return seen(), __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  return seen(), __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return seen(), __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  seen();
  *out = __libc_memalign(alignment, size);
  return *out == NULL ? 12 : 0;
}

enum { kBatch = 1200, kHeads = 2, kDim = 16, kQuery = 1, kKeys = 8, kPage = 4, kEntries = kKeys / kPage };

/* One case: the problem's text, and tensors that fit it. Memory is shared by all. */
static float q[kBatch * kQuery * kHeads * kDim], k[kBatch * kKeys * kHeads * kDim],
    v[kBatch * kKeys * kHeads * kDim];
static float o[kBatch * kQuery * kHeads * kDim], lse[kBatch * kQuery * kHeads];
static float k_new[kBatch * kHeads * kDim], v_new[kBatch * kHeads * kDim];
static float cosines[kKeys * kDim / 2], sines[kKeys * kDim / 2], sinks[kHeads], slopes[kHeads];
static int32_t cu_q[kBatch + 1], cu_kv[kBatch + 1], used[kBatch], table[kBatch * kEntries];

static void run_counted(const char* text, const attn_tensors_t* tensors, int threads) {
  attn_problem_t problem = ATTN_PROBLEM_INIT;
  attn_plan_options_t options = ATTN_PLAN_OPTIONS_INIT;
  attn_plan_t* plan = NULL;
  size_t bytes = 0;
  void* workspace = NULL;
  int i;
  options.backend = ATTN_BACKEND_CPU;
  options.threads = threads;
  CHECK_OK(attn_problem_parse(text, &problem));
  CHECK_OK(attn_plan_create(&problem, &options, &plan));
  CHECK_OK(attn_plan_workspace_bytes(plan, &bytes));
  workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  /* On one thread the first run counts too. Several threads are started by the first. */
  for (i = 0; i < (threads == 1 ? 0 : 3); ++i) {
    CHECK_OK(attn_run(plan, tensors, workspace, bytes, NULL));
  }
  atomic_store(&allocations, 0);
  for (i = 0; i < 20; ++i) {
    attn_status_t status;
    atomic_store(&watching, 1);
    status = attn_run(plan, tensors, workspace, bytes, NULL);
    atomic_store(&watching, 0);
    CHECK_OK(status);
  }
  CHECK_NEAR(atomic_load(&allocations), 0, 0);
  if (atomic_load(&allocations) != 0) {
    fprintf(stderr, "  in: %s, %d threads\n", text, threads);
  }
  free(workspace);
  attn_plan_destroy(plan);
}

static void all_cases(int threads) {
  attn_tensor_view_t vq = attn_view_bshd(q, ATTN_FLOAT32, kBatch, kQuery, kHeads, kDim);
  attn_tensor_view_t vk = attn_view_bshd(k, ATTN_FLOAT32, kBatch, kKeys, kHeads, kDim);
  attn_tensor_view_t vv = attn_view_bshd(v, ATTN_FLOAT32, kBatch, kKeys, kHeads, kDim);
  attn_tensor_view_t vo = attn_view_bshd(o, ATTN_FLOAT32, kBatch, kQuery, kHeads, kDim);
  attn_tensor_view_t vl = attn_view_lse(lse, kBatch, kHeads, kQuery);
  attn_tensor_view_t nk = attn_view_bshd(k_new, ATTN_FLOAT32, kBatch, 1, kHeads, kDim);
  attn_tensor_view_t nv = attn_view_bshd(v_new, ATTN_FLOAT32, kBatch, 1, kHeads, kDim);
  attn_tensor_view_t vc = attn_view_bshd(cosines, ATTN_FLOAT32, 1, kKeys, 1, kDim / 2);
  attn_tensor_view_t vs = attn_view_bshd(sines, ATTN_FLOAT32, 1, kKeys, 1, kDim / 2);
  attn_tensor_view_t pq = attn_view_bshd(q, ATTN_FLOAT32, 1, kBatch * kQuery, kHeads, kDim);
  attn_tensor_view_t pk = attn_view_bshd(k, ATTN_FLOAT32, 1, kBatch * kKeys, kHeads, kDim);
  attn_tensor_view_t pv = attn_view_bshd(v, ATTN_FLOAT32, 1, kBatch * kKeys, kHeads, kDim);
  attn_tensor_view_t po = attn_view_bshd(o, ATTN_FLOAT32, 1, kBatch * kQuery, kHeads, kDim);
  attn_tensor_view_t gk = attn_view_bshd(k, ATTN_FLOAT32, kBatch * kEntries, kPage, kHeads, kDim);
  attn_tensor_view_t gv = attn_view_bshd(v, ATTN_FLOAT32, kBatch * kEntries, kPage, kHeads, kDim);
  attn_tensors_t t = ATTN_TENSORS_INIT;

  t.q = &vq, t.k = &vk, t.v = &vv, t.o = &vo, t.lse = &vl;
  run_counted("b1200 hq2 sq1 sk8 d16 fp32 causal=br lse", &t, threads);
  t.sinks = sinks, t.alibi_slopes = slopes, t.seqused_kv = used;
  run_counted("b1200 hq2 sq1 sk8 d16 fp32 causal=br sinks alibi seqused softcap=5 window=3,0 lse", &t,
              threads);
  run_counted("b1200 hq2 sq1 sk8 d16 fp32 causal=br sinks alibi seqused splits=2 lse", &t, threads);

  t = (attn_tensors_t)ATTN_TENSORS_INIT;
  t.q = &vq, t.k = &vk, t.v = &vv, t.o = &vo, t.seqused_kv = used;
  t.k_new = &nk, t.v_new = &nv, t.rotary_cos = &vc, t.rotary_sin = &vs;
  run_counted("b1200 hq2 sq1 sk8 d16 fp32 causal=br seqused new=1 rotary=16,half", &t, threads);

  t = (attn_tensors_t)ATTN_TENSORS_INIT;
  t.q = &vq, t.k = &gk, t.v = &gv, t.o = &vo, t.seqused_kv = used, t.page_table = table;
  t.page_table_stride = kEntries;
  run_counted("b1200 hq2 sq1 sk8 d16 fp32 seqused page=4 pages=2400", &t, threads);

  t = (attn_tensors_t)ATTN_TENSORS_INIT;
  t.q = &pq, t.k = &pk, t.v = &pv, t.o = &po, t.cu_seqlens_q = cu_q, t.cu_seqlens_kv = cu_kv;
  run_counted("b1200 hq2 sq1 sk8 d16 fp32 varlen_q=1200 varlen_kv=9600", &t, threads);
}

int main(void) {
  void* volatile probe;
  int b, e;
  for (b = 0; b < kBatch; ++b) {
    cu_q[b + 1] = (b + 1) * kQuery;
    cu_kv[b + 1] = (b + 1) * kKeys;
    used[b] = b % kKeys;
    for (e = 0; e < kEntries; ++e) {
      table[b * kEntries + e] = b * kEntries + e;
    }
  }
  /* The counter itself works, for what the library would use too. */
  atomic_store(&watching, 1);
  probe = malloc(1);
  free(probe);
  atomic_store(&watching, 0);
  CHECK_NEAR(atomic_load(&allocations), 1, 0);
  atomic_store(&watching, 1);
  CHECK(attn_validate(NULL) == ATTN_INVALID_ARGUMENT); /* a refusal makes its message */
  atomic_store(&watching, 0);
  CHECK(atomic_load(&allocations) > 1);

  all_cases(1);
  all_cases(2);
  return done();
}
