// What the stand-alone kernel checks need of the driver beyond libattn's own table: memory, events, graphs.
// Any failure ends the program with a message: a check that cannot run has not passed.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/device.hpp"

namespace attn::check {

inline void must(const Status& status, const char* what) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
    std::exit(2);
  }
}

struct Gpu {
  cuda::Device* device = nullptr;
  const cuda::Driver* driver = nullptr;
  CUmodule module = nullptr;
  CUstream stream = nullptr;

  template <class Function>
  static Function load(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    auto function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
      std::fprintf(stderr, "libcuda.so.1 has no %s\n", name);
      std::exit(2);
    }
    return function;
  }
  void ok(CUresult result, const char* what) const { must(cuda::check(*driver, result, what), what); }

#define ATTN_GPU_CALL(function, ...) ATTN_GPU_OF(*this, function, __VA_ARGS__)
#define ATTN_GPU_OF(gpu, function, ...) \
  (gpu).ok(attn::check::Gpu::load<decltype(&::function)>(ATTN_GPU_NAME(function))(__VA_ARGS__), #function)
#define ATTN_GPU_NAME_(x) #x
#define ATTN_GPU_NAME(x) ATTN_GPU_NAME_(x)

  void open(const unsigned char* cubin) {
    must(cuda::Device::get(0, &device), "device 0");
    driver = &device->driver();
    CUdevice handle = 0;
    ok(driver->device_get(&handle, 0), "cuDeviceGet");
    CUcontext context = nullptr;
    ok(driver->primary_ctx_retain(&context, handle), "cuDevicePrimaryCtxRetain");
    ATTN_GPU_CALL(cuCtxSetCurrent, context);
    if (cubin != nullptr) {
      ATTN_GPU_CALL(cuModuleLoadData, &module, cubin);
    }
    ATTN_GPU_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  }
  [[nodiscard]] void* allocate(std::size_t bytes) const {
    CUdeviceptr p = 0;
    ATTN_GPU_CALL(cuMemAlloc, &p, bytes);
    return reinterpret_cast<void*>(p);
  }
  void set(void* p, unsigned char value, std::size_t bytes) const {
    ATTN_GPU_CALL(cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(p), value, bytes, stream);
  }
  void set16(void* p, unsigned short value, std::size_t count) const {
    ATTN_GPU_CALL(cuMemsetD16Async, reinterpret_cast<CUdeviceptr>(p), value, count, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    ATTN_GPU_CALL(cuMemcpyDtoDAsync, reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                  bytes, stream);
  }
  void write(void* to, const void* host, std::size_t bytes) const {
    sync();
    ATTN_GPU_CALL(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(to), host, bytes);
  }
  void read(void* host, const void* from, std::size_t bytes) const {
    sync();
    ATTN_GPU_CALL(cuMemcpyDtoH, host, reinterpret_cast<CUdeviceptr>(from), bytes);
  }
  void sync() const {
    ATTN_GPU_CALL(cuStreamSynchronize, stream);
  }

  template <class... Arguments>
  void launch(const char* name, unsigned blocks, unsigned threads, Arguments... arguments) const {
    CUfunction function = nullptr;
    ATTN_GPU_CALL(cuModuleGetFunction, &function, module, name);
    void* pointers[] = {&arguments...};
    ATTN_GPU_CALL(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
  }
};

}  // namespace attn::check
