// What is known of one device: properties, its primary context, kernels that are loaded. One object a device,
// made on first use, guarded; the caller's current context is left as found. Tested in tests/kernels.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda/driver.hpp"
#include "cuda/kernel_table.hpp"

namespace attn::cuda {

// What the order of tiles depends on.
struct GpuSize {
  std::int64_t l2_bytes = 0;
  std::int64_t num_sms = 1;
};

class Device {
 public:
  // Device `ordinal`, or why it cannot be used at all.
  static Status get(int ordinal, Device** device);

  [[nodiscard]] const Driver& driver() const noexcept { return *driver_; }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] int compute_major() const noexcept { return compute_major_; }
  [[nodiscard]] int compute_minor() const noexcept { return compute_minor_; }
  [[nodiscard]] int num_sms() const noexcept { return num_sms_; }
  [[nodiscard]] GpuSize size() const noexcept { return {l2_bytes_, num_sms_}; }

  // The kernel, loaded and allowed its shared memory on this device. Thread-safe.
  Status kernel(const KernelEntry& entry, CUfunction* function);

  // Makes a context of this device current for a scope: the caller's own if it is of this device (its streams
  // belong to it), else the primary one, which is popped again at the end.
  class Scope {
   public:
    Scope() = default;
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();
    Status enter(Device& device);

   private:
    const Driver* pushed_ = nullptr;
  };

 private:
  Status init(int ordinal);

  const Driver* driver_ = nullptr;
  int ordinal_ = 0;
  std::string name_;
  int compute_major_ = 0;
  int compute_minor_ = 0;
  int num_sms_ = 0;
  std::int64_t l2_bytes_ = 0;
  CUdevice handle_ = 0;
  std::mutex mutex_;  // guards what follows
  CUcontext primary_ = nullptr;
  std::unordered_map<const KernelEntry*, CUfunction> kernels_;
};

}  // namespace attn::cuda
