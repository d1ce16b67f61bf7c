/* Report B45: two copies of the library, and something else that defines libattn's C++ symbols first, loaded
 * into one process with RTLD_GLOBAL. Each copy must call its own functions and be right. Arguments: an
 * interposer, two copies of the library. */
#include <attn/attn.h>
#include <dlfcn.h>

#include "check.h"

typedef attn_status_t (*forward_t)(const attn_tensor_view_t*, const attn_tensor_view_t*,
                                   const attn_tensor_view_t*, const attn_tensor_view_t*,
                                   const attn_forward_options_t*);
typedef const char* (*text_t)(void);

static void right(void* library) {
  float q[2] = {1, 0}, k[4] = {1, 0, 0, 1}, v[4] = {4, 0, 0, 8}, o[2] = {0, 0};
  attn_tensor_view_t vq = attn_view_bshd(q, ATTN_FLOAT32, 1, 1, 1, 2);
  attn_tensor_view_t vk = attn_view_bshd(k, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t vv = attn_view_bshd(v, ATTN_FLOAT32, 1, 2, 1, 2);
  attn_tensor_view_t vo = attn_view_bshd(o, ATTN_FLOAT32, 1, 1, 1, 2);
  attn_forward_options_t options = ATTN_FORWARD_OPTIONS_INIT;
  forward_t forward;
  text_t version;
  *(void**)&forward = dlsym(library, "attn_forward");
  *(void**)&version = dlsym(library, "attn_version");
  options.has_softmax_scale = 1;
  options.softmax_scale = logf(3.0F);
  CHECK(forward != NULL && forward(&vq, &vk, &vv, &vo, &options) == ATTN_OK);
  CHECK_NEAR(o[0], 3, 1e-5);
  CHECK_NEAR(o[1], 2, 1e-5);
  CHECK(version != NULL && strcmp(version(), "interposed") != 0);
}

int main(int argc, char** argv) {
  void *interposer, *first, *second;
  if (argc != 4) {
    return 2;
  }
  interposer = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  first = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
  second = dlopen(argv[3], RTLD_NOW | RTLD_GLOBAL);
  CHECK(interposer != NULL && first != NULL && second != NULL && first != second);
  if (first == NULL || second == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  CHECK(dlsym(first, "attn_forward") != dlsym(second, "attn_forward"));
  right(first);
  right(second);
  right(first);
  return done();
}
