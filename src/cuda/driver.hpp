// The CUDA driver, opened at run time: libattn links no CUDA and works on machines that have none. Contract:
// a driver that is missing, too old or without a device is a Status, found once and remembered; nothing here
// touches a device's context. Tested in tests/unit/cuda_driver_test.cpp (without a GPU) and tests/kernels.
#pragma once

#include <cuda.h>

#include <attn/status.hpp>
#include <string>

namespace attn::cuda {

// The driver's functions that libattn calls, by their versioned names in cuda.h of CUDA 13.0.
struct Driver {
  decltype(&::cuInit) init;
  decltype(&::cuDriverGetVersion) driver_get_version;
  decltype(&::cuGetErrorName) get_error_name;
  decltype(&::cuDeviceGetCount) device_get_count;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetName) device_get_name;
  decltype(&::cuDeviceGetAttribute) device_get_attribute;
  decltype(&::cuDevicePrimaryCtxRetain) primary_ctx_retain;
  decltype(&::cuCtxGetCurrent) ctx_get_current;
  decltype(&::cuCtxGetDevice) ctx_get_device;
  decltype(&::cuCtxPushCurrent) ctx_push_current;
  decltype(&::cuCtxPopCurrent) ctx_pop_current;
  decltype(&::cuLibraryLoadData) library_load_data;
  decltype(&::cuLibraryGetKernel) library_get_kernel;
  decltype(&::cuKernelSetAttribute) kernel_set_attribute;
  decltype(&::cuLaunchKernelEx) launch_kernel_ex;
  decltype(&::cuTensorMapEncodeTiled) tensor_map_encode_tiled;
  decltype(&::cuPointerGetAttributes) pointer_get_attributes;
  // For attn::forward, which brings its own scratch.
  decltype(&::cuMemAllocAsync) mem_alloc_async;
  decltype(&::cuMemFreeAsync) mem_free_async;
  decltype(&::cuStreamIsCapturing) stream_is_capturing;
  // For tools and tests that hold host memory (staging.hpp); a run of the library calls none of these.
  decltype(&::cuMemAlloc) mem_alloc;
  decltype(&::cuMemFree) mem_free;
  decltype(&::cuMemsetD8) memset_d8;
  decltype(&::cuMemcpyHtoD) memcpy_to_device;
  decltype(&::cuMemcpyDtoH) memcpy_to_host;
  decltype(&::cuStreamCreate) stream_create;
  decltype(&::cuStreamDestroy) stream_destroy;
  decltype(&::cuStreamSynchronize) stream_synchronize;
  decltype(&::cuEventCreate) event_create;
  decltype(&::cuEventDestroy) event_destroy;
  decltype(&::cuEventRecord) event_record;
  decltype(&::cuEventSynchronize) event_synchronize;
  decltype(&::cuEventElapsedTime) event_elapsed_time;
};

// The driver, or why there is none. Thread-safe; the first call does the work.
Status open_driver(const Driver** driver);
// ok, or that this is a child of fork where the driver does not work. To be asked before a mutex of this room
// is locked: in such a child it may be held by a thread that is not there.
Status usable_after_fork();

// "CUDA_ERROR_…" for a message.
[[nodiscard]] std::string error_name(const Driver& driver, CUresult result);
// ok, or kBackendError naming the call.
Status check(const Driver& driver, CUresult result, const char* call);

}  // namespace attn::cuda
