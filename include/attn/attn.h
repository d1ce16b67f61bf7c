/* libattn from C (C99) and from everything that can call C: exact fused attention, softmax(scale · Q·Kᵀ)·V.
 * The same calls with the same meaning as <attn/attn.hpp>; what they compute is docs/contract.md.
 * No function throws, prints or aborts: each returns a status, and attn_last_error() says what was wrong.
 * Every value here is fixed: a program built against an older header runs with a newer library of the same
 * soname. Tested in tests/capi. */
#ifndef ATTN_ATTN_H_
#define ATTN_ATTN_H_

#include <stddef.h>
#include <stdint.h>

/* Version of this header; attn_version_number() is that of the library in use. */
#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0
#define ATTN_VERSION_NUMBER (ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH)

#ifndef ATTN_API
#if defined(ATTN_STATIC)
#define ATTN_API
#else
#define ATTN_API __attribute__((visibility("default")))
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- values ------------------------------------------------------------------------------------------------
 */

typedef int32_t attn_status_t;
enum {
  ATTN_OK = 0,
  ATTN_INVALID_ARGUMENT = 1, /* not well formed, whatever the backend */
  ATTN_UNSUPPORTED = 2,      /* well formed, but no backend (or not the one asked for) can do it */
  ATTN_UNAVAILABLE = 3,      /* the backend cannot be used on this machine */
  ATTN_OUT_OF_MEMORY = 4,    /* an allocation failed */
  ATTN_BACKEND_ERROR = 5,    /* the driver reported a failure */
  ATTN_FILE_ERROR = 6,       /* of the command line tools only */
  ATTN_INTERNAL = 7          /* a defect of libattn */
};

typedef int32_t attn_dtype_t;
enum {
  ATTN_FLOAT32 = 0,
  ATTN_FLOAT16 = 1, /* IEEE binary16 */
  ATTN_BFLOAT16 = 2 /* upper half of binary32 */
};

typedef int32_t attn_backend_t;
enum {
  ATTN_BACKEND_AUTO =
      0, /* the GPU where one can do the problem, else the CPU; attn_plan_explain says which */
  ATTN_BACKEND_CPU = 1,
  ATTN_BACKEND_CUDA = 2
};

/* Which query row sits beside the last key: query i is at key position i + off. There is no default wherever
 * causal, a window, ALiBi or rotary is in use. */
typedef int32_t attn_alignment_t;
enum {
  ATTN_ALIGN_UNSET = 0,
  ATTN_ALIGN_TOP_LEFT = 1,    /* off = 0 */
  ATTN_ALIGN_BOTTOM_RIGHT = 2 /* off = seqlen_kv - seqlen_q */
};

typedef int32_t attn_rotary_style_t;
enum {
  ATTN_ROTARY_HALF_SPLIT = 0, /* pairs (c, c + rotary_dim / 2) */
  ATTN_ROTARY_INTERLEAVED = 1 /* pairs (2c, 2c + 1) */
};

/* --- structs -----------------------------------------------------------------------------------------------
 * Each is made with its ..._INIT macro, which sets struct_size and the defaults:
 *     attn_problem_t problem = ATTN_PROBLEM_INIT;
 * struct_size is how the struct grows: fields are only ever added at the end, in multiples of 8 bytes, with 0
 * for "as before". A smaller struct (an older header) is filled up with defaults; a larger one (a newer
 * header) is taken if all that this library does not know is zero, and refused otherwise. Flags are 0 or 1;
 * reserved fields are 0. */

/* A borrowed, strided 4-D array. Axes are always (batch, seqlen, heads, head_dim); the memory order is what
 * the strides say. Strides are in elements; 0 (broadcast) and negative ones are allowed for inputs. */
typedef struct attn_tensor_view_t {
  size_t struct_size;
  void* data; /* inputs are never written through it */
  attn_dtype_t dtype;
  int32_t reserved;
  int64_t shape[4];
  int64_t strides[4];
} attn_tensor_view_t;
#define ATTN_TENSOR_VIEW_INIT                                          \
  {                                                                    \
    sizeof(attn_tensor_view_t), NULL, ATTN_FLOAT32, 0, {0, 0, 0, 0}, { \
      0, 0, 0, 0                                                       \
    }                                                                  \
  }

/* What is computed, without any pointer. Each field means what the field of attn::Problem of that name means.
 */
typedef struct attn_problem_t {
  size_t struct_size;
  attn_dtype_t dtype; /* of Q, K, V and O */
  attn_alignment_t alignment;
  int64_t batch;
  int64_t seqlen_q;  /* with varlen_q: an upper bound of the lengths */
  int64_t seqlen_kv; /* with varlen_kv: an upper bound; paged or appended to: the capacity of a sequence */
  int64_t heads_q;
  int64_t heads_kv; /* divides heads_q */
  int64_t head_dim_qk;
  int64_t head_dim_v;
  /* A struct that ends here is complete: the rest has defaults. */
  int32_t has_softmax_scale; /* 0: the scale is 1 / sqrt(head_dim_qk), and softmax_scale is 0 */
  float softmax_scale;       /* any finite value */
  int32_t causal;            /* query i sees key j iff j <= i + off */
  float softcap;             /* s <- softcap * tanh(s / softcap); 0: off */
  int64_t window_left;       /* j >= i + off - window_left; -1: unbounded */
  int64_t window_right;      /* j <= i + off + window_right; -1: unbounded, 0 is a real 0 */
  int32_t sinks;             /* attn_tensors_t.sinks is given */
  int32_t lse_with_sink;     /* whether the LSE counts the sink; O always does */
  int32_t alibi;             /* attn_tensors_t.alibi_slopes is given */
  int32_t varlen_q;          /* cu_seqlens_q is given; Q and O are (1, total_q, heads_q, ...) */
  int32_t varlen_kv;         /* cu_seqlens_kv is given; K and V are (1, total_kv, heads_kv, ...) */
  int32_t seqused_kv;        /* seqused_kv is given: the first so many keys of each sequence exist */
  int64_t total_q;           /* rows of the packed Q, only with varlen_q */
  int64_t total_kv;          /* rows of the packed K and V, only with varlen_kv */
  int64_t page_size;         /* keys a page; 0: K and V are not paged */
  int64_t num_pages;         /* pages in the pool: K and V are (num_pages, page_size, heads_kv, ...) */
  int64_t seqlen_new;        /* keys to append to each sequence before it is read; 0: none */
  int64_t rotary_dim;        /* channels of Q and the new keys that are rotated; 0: none */
  attn_rotary_style_t rotary_style;
  int32_t want_lse; /* attn_tensors_t.lse is written */
  int32_t batch_invariant;
  int32_t deterministic;
  int64_t num_splits; /* along the keys; 0: chosen by the plan */
} attn_problem_t;
#define ATTN_PROBLEM_INIT                                                                                 \
  {                                                                                                       \
    sizeof(attn_problem_t), ATTN_BFLOAT16, ATTN_ALIGN_UNSET, 1, 1, 1, 1, 1, 64, 64, 0, 0.0F, 0, 0.0F, -1, \
        -1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ATTN_ROTARY_HALF_SPLIT, 0, 0, 1, 0                        \
  }

typedef struct attn_plan_options_t {
  size_t struct_size;
  attn_backend_t backend;
  int32_t device;  /* CUDA device ordinal */
  int32_t threads; /* CPU: at most so many; 0: as many as CPU affinity and container quota allow */
  int32_t reserved;
  const char* cpu_level; /* CPU: a SIMD level such as "avx2"; NULL: ATTN_CPU_LEVEL in the environment, else
                            the best */
  const char* kernel;    /* a kernel's name, as attn_plan_kernel gives it; NULL: chosen */
} attn_plan_options_t;
#define ATTN_PLAN_OPTIONS_INIT \
  { sizeof(attn_plan_options_t), ATTN_BACKEND_AUTO, 0, 0, 0, NULL, NULL }

/* What one run reads and writes. NULL is "absent"; what the problem does not announce must be absent. Host
 * memory for CPU plans, device memory for CUDA plans (the views themselves are always in host memory). */
typedef struct attn_tensors_t {
  size_t struct_size;
  const attn_tensor_view_t* q;   /* (batch, seqlen_q, heads_q, head_dim_qk), or (1, total_q, ...) */
  const attn_tensor_view_t* k;   /* (batch, seqlen_kv, heads_kv, head_dim_qk), (1, total_kv, ...) or paged */
  const attn_tensor_view_t* v;   /* as k, with head_dim_v */
  const attn_tensor_view_t* o;   /* as q, with head_dim_v; its memory is written */
  const attn_tensor_view_t* lse; /* fp32 (batch, heads_q, seqlen_q, 1) or (1, heads_q, total_q, 1); written */
  const int32_t* cu_seqlens_q;   /* batch + 1 ascending row offsets, the first 0 */
  const int32_t* cu_seqlens_kv;  /* batch + 1 */
  const int32_t* seqused_kv;     /* batch */
  const int32_t* page_table;     /* (batch, page_table_stride): the page of each page_size keys */
  int64_t page_table_stride;     /* entries from one sequence's row to the next */
  const attn_tensor_view_t* k_new;      /* (batch, seqlen_new, heads_kv, head_dim_qk) */
  const attn_tensor_view_t* v_new;      /* (batch, seqlen_new, heads_kv, head_dim_v) */
  const attn_tensor_view_t* rotary_cos; /* fp32 (1, positions, 1, rotary_dim / 2) */
  const attn_tensor_view_t* rotary_sin; /* as rotary_cos */
  const float* sinks;                   /* heads_q logits */
  const float* alibi_slopes;            /* heads_q slopes, or (batch, alibi_batch_stride) */
  int64_t alibi_batch_stride;           /* elements from one batch entry's slopes to the next; 0: shared */
} attn_tensors_t;
#define ATTN_TENSORS_INIT                                                                                    \
  {                                                                                                          \
    sizeof(attn_tensors_t), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, \
        NULL, NULL, 0                                                                                        \
  }

/* Options of the one-call helper. Each means what the field of the same name above means. */
typedef struct attn_forward_options_t {
  size_t struct_size;
  int32_t has_softmax_scale;
  float softmax_scale;
  int32_t causal;
  attn_alignment_t alignment;
  int64_t window_left;
  int64_t window_right;
  float softcap;
  int32_t lse_with_sink;
  const float* sinks;
  const float* alibi_slopes;
  const attn_tensor_view_t* lse; /* NULL: not computed */
  int32_t batch_invariant;
  int32_t reserved;
  const attn_plan_options_t* plan; /* NULL: ATTN_PLAN_OPTIONS_INIT */
  void* stream;
} attn_forward_options_t;
#define ATTN_FORWARD_OPTIONS_INIT                                                                          \
  {                                                                                                        \
    sizeof(attn_forward_options_t), 0, 0.0F, 0, ATTN_ALIGN_UNSET, -1, -1, 0.0F, 1, NULL, NULL, NULL, 0, 0, \
        NULL, NULL                                                                                         \
  }

/* Views of compact arrays in memory order (b, s, h, d) or (b, h, s, d); the axes are the same. */
static inline attn_tensor_view_t attn_view_bshd(const void* data, attn_dtype_t dtype, int64_t b, int64_t s,
                                                int64_t h, int64_t d) {
  attn_tensor_view_t view = ATTN_TENSOR_VIEW_INIT;
  view.data = (void*)(uintptr_t)data;
  view.dtype = dtype;
  view.shape[0] = b, view.shape[1] = s, view.shape[2] = h, view.shape[3] = d;
  view.strides[0] = s * h * d, view.strides[1] = h * d, view.strides[2] = d, view.strides[3] = 1;
  return view;
}
static inline attn_tensor_view_t attn_view_bhsd(const void* data, attn_dtype_t dtype, int64_t b, int64_t s,
                                                int64_t h, int64_t d) {
  attn_tensor_view_t view = attn_view_bshd(data, dtype, b, s, h, d);
  view.strides[0] = h * s * d, view.strides[1] = d, view.strides[2] = s * d;
  return view;
}
/* The LSE: fp32, compact (b, h, s). */
static inline attn_tensor_view_t attn_view_lse(const float* data, int64_t b, int64_t h, int64_t s) {
  return attn_view_bshd(data, ATTN_FLOAT32, b, h, s, 1);
}

/* --- functions
 * ---------------------------------------------------------------------------------------------- Functions
 * that give text take (buffer, capacity, length): at most `capacity` bytes are written, always with a
 * terminating 0 where capacity > 0, and *length (where length is not NULL) is the full length without it, as
 * with snprintf. buffer may be NULL if capacity is 0. */

ATTN_API const char* attn_version(void);    /* "0.1.0" */
ATTN_API int32_t attn_version_number(void); /* 100 for 0.1.0; compare with ATTN_VERSION_NUMBER */
ATTN_API const char* attn_status_string(attn_status_t status); /* "invalid argument"; never NULL */
/* What was wrong with this thread's last call that did not return ATTN_OK: the argument, its value, what is
 * allowed. "" if there was none; never NULL. Valid until this thread's next call that fails. */
ATTN_API const char* attn_last_error(void);

/* The problem string, such as "b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=br" (docs/problem-string.md).
 * `problem` must have been initialised; it is left as it was if the text is refused. */
ATTN_API attn_status_t attn_problem_parse(const char* text, attn_problem_t* problem);
ATTN_API attn_status_t attn_problem_to_string(const attn_problem_t* problem, char* buffer, size_t capacity,
                                              size_t* length);

/* Whether the problem is well formed, whatever the backend. */
ATTN_API attn_status_t attn_validate(const attn_problem_t* problem);
/* Whether tensors fit the problem. Lengths and page tables are read (and checked) only if metadata_on_host.
 */
ATTN_API attn_status_t attn_validate_tensors(const attn_problem_t* problem, const attn_tensors_t* tensors,
                                             int32_t metadata_on_host);

/* Whether a backend (not ATTN_BACKEND_AUTO) can do the problem: *supported is 1 or 0, and the text says why
 * not
 * ("" if it can). options may be NULL. A problem that is not well formed is an error. */
ATTN_API attn_status_t attn_support(const attn_problem_t* problem, const attn_plan_options_t* options,
                                    attn_backend_t backend, int32_t* supported, char* buffer, size_t capacity,
                                    size_t* length);

/* A plan: an immutable host decision (backend, kernel, tiles, splits, workspace), which threads may share. */
typedef struct attn_plan_t attn_plan_t;
/* options may be NULL. *plan is NULL unless ATTN_OK is returned. */
ATTN_API attn_status_t attn_plan_create(const attn_problem_t* problem, const attn_plan_options_t* options,
                                        attn_plan_t** plan);
ATTN_API void attn_plan_destroy(attn_plan_t* plan); /* NULL is fine */
/* Bytes of scratch that attn_run needs, at an address that is a multiple of 64 (256 on a GPU). */
ATTN_API attn_status_t attn_plan_workspace_bytes(const attn_plan_t* plan, size_t* bytes);
ATTN_API attn_status_t attn_plan_backend(const attn_plan_t* plan, attn_backend_t* backend);
ATTN_API attn_status_t attn_plan_num_splits(const attn_plan_t* plan, int32_t* num_splits);
/* The kernel's name, such as "cpu:avx3". */
ATTN_API attn_status_t attn_plan_kernel(const attn_plan_t* plan, char* buffer, size_t capacity,
                                        size_t* length);
/* Several lines: problem, backend, kernel, tiles, splits, and a sentence for each backend that was not taken.
 */
ATTN_API attn_status_t attn_plan_explain(const attn_plan_t* plan, char* buffer, size_t capacity,
                                         size_t* length);

/* Carries the plan out. stream: a cudaStream_t or CUstream for CUDA plans (NULL: the default stream); NULL
 * for CPU plans, which return when the work is done. Nothing is written unless every argument is right.
 * Allocates nothing, compiles nothing, synchronises nothing on a device. */
ATTN_API attn_status_t attn_run(const attn_plan_t* plan, const attn_tensors_t* tensors, void* workspace,
                                size_t workspace_bytes, void* stream);

/* Dense attention in one call: the problem is read off the views, plans are cached. options may be NULL. */
ATTN_API attn_status_t attn_forward(const attn_tensor_view_t* q, const attn_tensor_view_t* k,
                                    const attn_tensor_view_t* v, const attn_tensor_view_t* o,
                                    const attn_forward_options_t* options);

/* Merges partial results over disjoint sets of keys by log-sum-exp. o_partials and lse_partials hold
 * num_partials pointers each: (batch, seqlen_q, heads_q, head_dim_v) and fp32 (batch, heads_q, seqlen_q, 1).
 * o may be of another dtype than the partials, and may be one of them; lse may be NULL. Host memory. */
ATTN_API attn_status_t attn_merge_partials(size_t num_partials, const attn_tensor_view_t* const* o_partials,
                                           const attn_tensor_view_t* const* lse_partials,
                                           const attn_tensor_view_t* o, const attn_tensor_view_t* lse);

#ifdef __cplusplus
}
#endif
#endif /* ATTN_ATTN_H_ */
