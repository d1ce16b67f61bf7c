/* Times one call after the other on the host, for bench/host_overhead.py, which builds and loads this:
 * nanoseconds of each call into a caller's array. The stream is emptied after every SYNC calls, outside the
 * measured time, so that no call waits for room in it. The few types of cuda.h that a launch needs are
 * declared here; not part of the build. */
#include <attn/attn.h>
#include <time.h>

enum { SYNC = 100 };

/* CUlaunchConfig and the two functions, as cuda.h has them since CUDA 11.8. */
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned num_attributes;
} launch_config_t;
typedef int (*launch_fn)(const launch_config_t* config, void* function, void** arguments, void** extra);
typedef int (*synchronize_fn)(void* stream);

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#define TIME_CALLS(CALL)                       \
  for (int64_t i = 0; i < calls; ++i) {        \
    const int64_t begin = now();               \
    const int status = (CALL);                 \
    ns[i] = now() - begin;                     \
    if (status != 0) {                         \
      return status;                           \
    }                                          \
    if (synchronize && i % SYNC == SYNC - 1) { \
      const int stopped = synchronize(stream); \
      if (stopped != 0) {                      \
        return stopped;                        \
      }                                        \
    }                                          \
  }                                            \
  return synchronize ? synchronize(stream) : 0

int host_launch(launch_fn launch, synchronize_fn synchronize, void* function, unsigned grid, unsigned block,
                unsigned shared_bytes, void* argument, void* stream, int64_t calls, int64_t* ns) {
  const launch_config_t config = {{grid, 1, 1}, {block, 1, 1}, shared_bytes, stream, 0, 0};
  void* arguments[] = {argument};
  TIME_CALLS(launch(&config, function, arguments, 0));
}

int host_run(synchronize_fn synchronize, const attn_plan_t* plan, const attn_tensors_t* tensors,
             void* workspace, size_t bytes, void* stream, int64_t calls, int64_t* ns) {
  TIME_CALLS((int)attn_run(plan, tensors, workspace, bytes, stream));
}

int host_forward(synchronize_fn synchronize, const attn_tensors_t* tensors, int32_t causal, void* stream,
                 int64_t calls, int64_t* ns) {
  attn_forward_options_t options = ATTN_FORWARD_OPTIONS_INIT;
  options.causal = causal;
  options.alignment = causal ? ATTN_ALIGN_BOTTOM_RIGHT : ATTN_ALIGN_UNSET;
  options.stream = stream;
  TIME_CALLS((int)attn_forward(tensors->q, tensors->k, tensors->v, tensors->o, &options));
}
