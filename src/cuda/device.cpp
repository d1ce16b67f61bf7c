#include "cuda/device.hpp"

#include <map>

namespace attn::cuda {
namespace {

// Cubins are loaded once for the process: cuLibrary handles are of no one context.
Status load_library(const Driver& driver, const KernelEntry& entry, CUkernel* kernel) {
  static std::mutex mutex;
  static std::unordered_map<const KernelEntry*, CUkernel> loaded;
  const std::lock_guard lock(mutex);
  if (const auto found = loaded.find(&entry); found != loaded.end()) {
    *kernel = found->second;
    return {};
  }
  CUlibrary library = nullptr;
  if (Status status = check(
          driver, driver.library_load_data(&library, entry.cubin, nullptr, nullptr, 0, nullptr, nullptr, 0),
          "cuLibraryLoadData");
      !status.ok()) {
    return status;
  }
  if (Status status =
          check(driver, driver.library_get_kernel(kernel, library, entry.name), "cuLibraryGetKernel");
      !status.ok()) {
    return {status.code(), status.message() + " for " + entry.name};
  }
  loaded.emplace(&entry, *kernel);
  return {};
}

}  // namespace

Status Device::get(int ordinal, Device** device) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<Device>> devices;
  *device = nullptr;
  if (Status status = usable_after_fork(); !status.ok()) {
    return status;
  }
  const std::lock_guard lock(mutex);
  if (const auto found = devices.find(ordinal); found != devices.end()) {
    *device = found->second.get();
    return {};
  }
  auto made = std::make_unique<Device>();
  if (Status status = made->init(ordinal); !status.ok()) {
    return status;
  }
  *device = devices.emplace(ordinal, std::move(made)).first->second.get();
  return {};
}

Status Device::init(int ordinal) {
  if (Status status = open_driver(&driver_); !status.ok()) {
    return status;
  }
  int count = 0;
  if (Status status = check(*driver_, driver_->device_get_count(&count), "cuDeviceGetCount"); !status.ok()) {
    return status;
  }
  if (ordinal < 0 || ordinal >= count) {
    return {StatusCode::kInvalidArgument, "device is " + std::to_string(ordinal) + "; the driver has " +
                                              std::to_string(count) + " (ordinals from 0)"};
  }
  ordinal_ = ordinal;
  if (Status status = check(*driver_, driver_->device_get(&handle_, ordinal), "cuDeviceGet"); !status.ok()) {
    return status;
  }
  char name[256] = {};
  if (driver_->device_get_name(name, static_cast<int>(sizeof(name)) - 1, handle_) == CUDA_SUCCESS) {
    name_ = name;
  }
  const auto attribute = [&](CUdevice_attribute which, int* value) {
    return check(*driver_, driver_->device_get_attribute(value, which, handle_), "cuDeviceGetAttribute");
  };
  int l2 = 0;
  for (const auto& [which, value] : {std::pair{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &compute_major_},
                                     std::pair{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &compute_minor_},
                                     std::pair{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &num_sms_},
                                     std::pair{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2}}) {
    if (Status status = attribute(which, value); !status.ok()) {
      return status;
    }
  }
  l2_bytes_ = l2;
  return {};
}

Status Device::kernel(const KernelEntry& entry, CUfunction* function) {
  const std::lock_guard lock(mutex_);
  if (const auto found = kernels_.find(&entry); found != kernels_.end()) {
    *function = found->second;
    return {};
  }
  CUkernel kernel = nullptr;
  if (Status status = load_library(*driver_, entry, &kernel); !status.ok()) {
    return status;
  }
  if (Status status =
          check(*driver_,
                driver_->kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                              sm90::shared_bytes(entry.key, entry.config), kernel, handle_),
                "cuKernelSetAttribute");
      !status.ok()) {
    return status;
  }
  // A CUkernel is launched as a CUfunction of whatever context is current (driver API, cuLaunchKernelEx).
  *function = reinterpret_cast<CUfunction>(kernel);
  kernels_.emplace(&entry, *function);
  return {};
}

Status Device::Scope::enter(Device& device) {
  if (Status status = usable_after_fork(); !status.ok()) {
    return status;
  }
  const Driver& driver = device.driver();
  CUcontext current = nullptr;
  if (driver.ctx_get_current(&current) == CUDA_SUCCESS && current != nullptr) {
    CUdevice of_current = -1;
    if (driver.ctx_get_device(&of_current) == CUDA_SUCCESS && of_current == device.handle_) {
      return {};
    }
  }
  {
    const std::lock_guard lock(device.mutex_);
    if (device.primary_ == nullptr) {
      if (Status status = check(driver, driver.primary_ctx_retain(&device.primary_, device.handle_),
                                "cuDevicePrimaryCtxRetain");
          !status.ok()) {
        return status;
      }
    }
  }
  if (Status status = check(driver, driver.ctx_push_current(device.primary_), "cuCtxPushCurrent");
      !status.ok()) {
    return status;
  }
  pushed_ = &driver;
  return {};
}

Device::Scope::~Scope() {
  if (pushed_ != nullptr) {
    CUcontext popped = nullptr;
    pushed_->ctx_pop_current(&popped);
  }
}

}  // namespace attn::cuda
