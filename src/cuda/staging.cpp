#include "cuda/staging.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/plan_impl.hpp"
#include "core/refusal.hpp"
#include "cuda/device.hpp"

namespace attn::cuda {
namespace {

constexpr std::size_t kAlign = 256;  // cuMemAlloc's

struct Range {
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  bool written = false;
  CUdeviceptr allocation = 0;
  CUdeviceptr device = 0;  // of host[0]
};

}  // namespace

struct Staging::Impl {
  Plan plan;
  Device* device = nullptr;
  const Driver* driver = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr workspace = 0;
  std::vector<Range> ranges;
  Tensors tensors;

  Status call(CUresult result, const char* what) const { return check(*driver, result, what); }

  ~Impl() {
    if (device == nullptr) {
      return;
    }
    Device::Scope scope;
    if (!scope.enter(*device).ok()) {
      return;
    }
    for (const Range& range : ranges) {
      driver->mem_free(range.allocation);
    }
    if (workspace != 0) {
      driver->mem_free(workspace);
    }
    if (stream != nullptr) {
      driver->stream_destroy(stream);
    }
  }

  Status allocate(std::size_t bytes, CUdeviceptr* address) const {
    const CUresult result = driver->mem_alloc(address, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      return {StatusCode::kOutOfMemory, "no device memory for " + std::to_string(bytes) + " bytes"};
    }
    return call(result, "cuMemAlloc");
  }

  Status add(void* host, std::size_t bytes, bool written) {
    Range range{static_cast<std::byte*>(host), bytes, written};
    const std::size_t lead = std::bit_cast<std::uintptr_t>(host) % kAlign;
    ATTN_RETURN_IF_ERROR(allocate(lead + bytes, &range.allocation));
    range.device = range.allocation + lead;
    ranges.push_back(range);
    return call(driver->memcpy_to_device(range.device, host, bytes), "cuMemcpyHtoD");
  }

  // The device address of a host one; adds [low, high) if it lies in no range.
  Status rebase(std::byte* at, std::byte* low, std::byte* high, bool written, CUdeviceptr* device_address) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      for (const Range& range : ranges) {
        if (low >= range.host && high <= range.host + range.bytes && (range.written || !written)) {
          *device_address = range.device + static_cast<CUdeviceptr>(at - range.host);
          return {};
        }
      }
      ATTN_RETURN_IF_ERROR(add(low, static_cast<std::size_t>(high - low), written));
    }
    return {StatusCode::kInternal, "staging: a range that was added is not found"};
  }

  Status rebase_view(TensorView* view, bool written) {
    if (!view->present() || view->num_elements() == 0) {
      return {};
    }
    const auto element = static_cast<std::int64_t>(size_of(view->dtype));
    std::int64_t low = 0;
    std::int64_t high = element;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      const std::int64_t reach = view->strides[axis] * (view->shape[axis] - 1) * element;
      (reach < 0 ? low : high) += reach;
    }
    auto* at = static_cast<std::byte*>(view->data);
    CUdeviceptr device_address = 0;
    ATTN_RETURN_IF_ERROR(rebase(at, at + low, at + high, written, &device_address));
    view->data = std::bit_cast<void*>(device_address);
    return {};
  }

  Status rebase_floats(const float** values, std::int64_t count) {
    if (*values == nullptr || count == 0) {
      return {};
    }
    auto* at = reinterpret_cast<std::byte*>(const_cast<float*>(*values));
    CUdeviceptr device_address = 0;
    ATTN_RETURN_IF_ERROR(
        rebase(at, at, at + count * static_cast<std::int64_t>(sizeof(float)), false, &device_address));
    *values = std::bit_cast<const float*>(device_address);
    return {};
  }
};

Staging::Staging(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Staging::~Staging() = default;

Status Staging::open(const Plan& plan, std::uint8_t workspace_fill, std::unique_ptr<Staging>* staging) {
  auto impl = std::make_unique<Impl>();
  impl->plan = plan;
  Device* device = nullptr;
  ATTN_RETURN_IF_ERROR(Device::get(plan.impl()->options.device, &device));
  impl->driver = &device->driver();
  impl->device = device;
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*device));
  ATTN_RETURN_IF_ERROR(
      impl->call(impl->driver->stream_create(&impl->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  if (const std::size_t bytes = plan.workspace_bytes(); bytes > 0) {
    ATTN_RETURN_IF_ERROR(impl->allocate(bytes, &impl->workspace));
    ATTN_RETURN_IF_ERROR(
        impl->call(impl->driver->memset_d8(impl->workspace, workspace_fill, bytes), "cuMemsetD8"));
  }
  staging->reset(new Staging(std::move(impl)));
  return {};
}

Status Staging::add_range(void* host, std::size_t bytes, bool written) {
  if (bytes == 0) {
    return {};
  }
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*impl_->device));
  return impl_->add(host, bytes, written);
}

Status Staging::set_tensors(const Tensors& host) {
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*impl_->device));
  Tensors tensors = host;
  for (TensorView* view : {&tensors.q, &tensors.k, &tensors.v}) {
    ATTN_RETURN_IF_ERROR(impl_->rebase_view(view, false));
  }
  for (TensorView* view : {&tensors.o, &tensors.lse}) {
    ATTN_RETURN_IF_ERROR(impl_->rebase_view(view, true));
  }
  const Problem& p = impl_->plan.impl()->problem;
  ATTN_RETURN_IF_ERROR(impl_->rebase_floats(&tensors.sinks, p.sinks ? p.heads_q : 0));
  ATTN_RETURN_IF_ERROR(impl_->rebase_floats(
      &tensors.alibi_slopes, p.alibi ? (p.batch - 1) * tensors.alibi_batch_stride + p.heads_q : 0));
  impl_->tensors = tensors;
  return {};
}

Status Staging::run() {
  return attn::run(impl_->plan, impl_->tensors, std::bit_cast<void*>(impl_->workspace),
                   impl_->plan.workspace_bytes(), impl_->stream);
}

Status Staging::synchronize() {
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*impl_->device));
  return impl_->call(impl_->driver->stream_synchronize(impl_->stream), "cuStreamSynchronize");
}

Status Staging::fetch() {
  ATTN_RETURN_IF_ERROR(synchronize());
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*impl_->device));
  for (const Range& range : impl_->ranges) {
    if (range.written) {
      ATTN_RETURN_IF_ERROR(
          impl_->call(impl_->driver->memcpy_to_host(range.host, range.device, range.bytes), "cuMemcpyDtoH"));
    }
  }
  return {};
}

Status Staging::time_runs(std::int64_t count, double* seconds) {
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*impl_->device));
  const Driver& driver = *impl_->driver;
  struct Events {
    const Driver& driver;
    CUevent begin = nullptr;
    CUevent end = nullptr;
    ~Events() {
      for (CUevent event : {begin, end}) {
        if (event != nullptr) {
          driver.event_destroy(event);
        }
      }
    }
  } events{driver};
  ATTN_RETURN_IF_ERROR(impl_->call(driver.event_create(&events.begin, CU_EVENT_DEFAULT), "cuEventCreate"));
  ATTN_RETURN_IF_ERROR(impl_->call(driver.event_create(&events.end, CU_EVENT_DEFAULT), "cuEventCreate"));
  ATTN_RETURN_IF_ERROR(impl_->call(driver.event_record(events.begin, impl_->stream), "cuEventRecord"));
  for (std::int64_t i = 0; i < count; ++i) {
    ATTN_RETURN_IF_ERROR(run());
  }
  ATTN_RETURN_IF_ERROR(impl_->call(driver.event_record(events.end, impl_->stream), "cuEventRecord"));
  ATTN_RETURN_IF_ERROR(impl_->call(driver.event_synchronize(events.end), "cuEventSynchronize"));
  float milliseconds = 0;
  ATTN_RETURN_IF_ERROR(
      impl_->call(driver.event_elapsed_time(&milliseconds, events.begin, events.end), "cuEventElapsedTime"));
  *seconds = static_cast<double>(milliseconds) * 1e-3 / static_cast<double>(count);
  return {};
}

}  // namespace attn::cuda
