#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

namespace attn::cuda {
namespace {

// cuda.h renames some functions to versioned ones by macro; this spells the name as the compiler sees it.
#define ATTN_CUDA_TEXT_(x) #x
#define ATTN_CUDA_TEXT(x) ATTN_CUDA_TEXT_(x)
#define ATTN_CUDA_LOAD(member, function)                                                                   \
  if ((loaded.member = reinterpret_cast<decltype(loaded.member)>(                                          \
           dlsym(library, ATTN_CUDA_TEXT(function)))) == nullptr) {                                        \
    return {StatusCode::kUnavailable, "the NVIDIA driver is too old: libcuda.so.1 has no " ATTN_CUDA_TEXT( \
                                          function) " (CUDA 12.4 and newer drivers do)"};                  \
  }

Status load(Driver& loaded) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {StatusCode::kUnavailable, "no NVIDIA driver: libcuda.so.1 cannot be opened"};
  }
  // Never closed: the driver does not support being unloaded.
  ATTN_CUDA_LOAD(init, cuInit)
  ATTN_CUDA_LOAD(driver_get_version, cuDriverGetVersion)
  ATTN_CUDA_LOAD(get_error_name, cuGetErrorName)
  ATTN_CUDA_LOAD(device_get_count, cuDeviceGetCount)
  ATTN_CUDA_LOAD(device_get, cuDeviceGet)
  ATTN_CUDA_LOAD(device_get_name, cuDeviceGetName)
  ATTN_CUDA_LOAD(device_get_attribute, cuDeviceGetAttribute)
  ATTN_CUDA_LOAD(primary_ctx_retain, cuDevicePrimaryCtxRetain)
  ATTN_CUDA_LOAD(ctx_get_current, cuCtxGetCurrent)
  ATTN_CUDA_LOAD(ctx_get_device, cuCtxGetDevice)
  ATTN_CUDA_LOAD(ctx_push_current, cuCtxPushCurrent)
  ATTN_CUDA_LOAD(ctx_pop_current, cuCtxPopCurrent)
  ATTN_CUDA_LOAD(library_load_data, cuLibraryLoadData)
  ATTN_CUDA_LOAD(library_get_kernel, cuLibraryGetKernel)
  ATTN_CUDA_LOAD(kernel_set_attribute, cuKernelSetAttribute)
  ATTN_CUDA_LOAD(launch_kernel_ex, cuLaunchKernelEx)
  ATTN_CUDA_LOAD(tensor_map_encode_tiled, cuTensorMapEncodeTiled)
  ATTN_CUDA_LOAD(pointer_get_attributes, cuPointerGetAttributes)
  ATTN_CUDA_LOAD(mem_alloc_async, cuMemAllocAsync)
  ATTN_CUDA_LOAD(mem_free_async, cuMemFreeAsync)
  ATTN_CUDA_LOAD(stream_is_capturing, cuStreamIsCapturing)
  ATTN_CUDA_LOAD(mem_alloc, cuMemAlloc)
  ATTN_CUDA_LOAD(mem_free, cuMemFree)
  ATTN_CUDA_LOAD(memset_d8, cuMemsetD8)
  ATTN_CUDA_LOAD(memcpy_to_device, cuMemcpyHtoD)
  ATTN_CUDA_LOAD(memcpy_to_host, cuMemcpyDtoH)
  ATTN_CUDA_LOAD(stream_create, cuStreamCreate)
  ATTN_CUDA_LOAD(stream_destroy, cuStreamDestroy)
  ATTN_CUDA_LOAD(stream_synchronize, cuStreamSynchronize)
  ATTN_CUDA_LOAD(event_create, cuEventCreate)
  ATTN_CUDA_LOAD(event_destroy, cuEventDestroy)
  ATTN_CUDA_LOAD(event_record, cuEventRecord)
  ATTN_CUDA_LOAD(event_synchronize, cuEventSynchronize)
  ATTN_CUDA_LOAD(event_elapsed_time, cuEventElapsedTime)

  const CUresult result = loaded.init(0);
  if (result != CUDA_SUCCESS) {
    return {StatusCode::kUnavailable,
            "the NVIDIA driver does not start: cuInit gave " + error_name(loaded, result)};
  }
  // Cubins of nvcc 13.0 were seen to load under drivers of CUDA 13; the first function that an older driver
  // lacks is named above. cuLibraryLoadData of a cubin that the driver cannot read is a Status of its own.
  int count = 0;
  if (loaded.device_get_count(&count) != CUDA_SUCCESS || count == 0) {
    return {StatusCode::kUnavailable, "the NVIDIA driver sees no device"};
  }
  return {};
}

// Set in a child whose parent had started the driver, or was about to. Registered when the library is loaded.
std::atomic<bool> g_started{false};
std::atomic<bool> g_in_child{false};
[[maybe_unused]] const int g_registered =
    pthread_atfork(nullptr, nullptr, [] { g_in_child.store(g_started.load()); });

}  // namespace

Status usable_after_fork() {
  if (!g_in_child.load(std::memory_order_relaxed)) {
    return {};
  }
  return {StatusCode::kUnavailable,
          "the NVIDIA driver was started before this process was forked, and does not work in a child; "
          "start it after the fork, or exec"};
}

Status open_driver(const Driver** driver) {
  static std::once_flag once;
  static Driver loaded{};
  static Status status;
  *driver = nullptr;
  if (Status usable = usable_after_fork(); !usable.ok()) {
    return usable;
  }
  std::call_once(once, [] {
    g_started.store(true);
    status = load(loaded);
    g_started.store(status.ok());
  });
  *driver = status.ok() ? &loaded : nullptr;
  return status;
}

std::string error_name(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUresult " + std::to_string(static_cast<int>(result));
  }
  return name;
}

Status check(const Driver& driver, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) {
    return {};
  }
  return {StatusCode::kBackendError, std::string(call) + " gave " + error_name(driver, result)};
}

}  // namespace attn::cuda
