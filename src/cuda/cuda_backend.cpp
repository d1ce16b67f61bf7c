#include "cuda/cuda_backend.hpp"

#include <bit>
#include <mutex>

#include "core/refusal.hpp"
#include "cuda/select.hpp"

namespace attn::cuda {
namespace {

struct CudaPlan : BackendPlan {
  const KernelEntry* entry = nullptr;
  DenseShape shape;
  TileOrder order;
  Device* device = nullptr;
  // The last run's, since most runs have the same tensors: four tensor maps cost as much as the launch
  // itself, and asking the driver where each address lies more than half of it.
  struct Last {
    std::mutex mutex;
    bool valid = false;
    DenseTensors tensors;
    void* workspace = nullptr;
    ForwardParams params;
  };
  mutable Last last;

  // Whether the last run had these tensors, which have then been looked at, and its parameters.
  [[nodiscard]] bool recall(const DenseTensors& tensors, void* workspace, ForwardParams* params) const {
    const std::unique_lock lock(last.mutex, std::try_to_lock);
    const bool same =
        lock.owns_lock() && last.valid && last.workspace == workspace && last.tensors == tensors;
    if (same) {
      *params = last.params;
    }
    return same;
  }
  void remember(const DenseTensors& tensors, void* workspace, const ForwardParams& params) const {
    const std::unique_lock lock(last.mutex, std::try_to_lock);
    if (lock.owns_lock()) {
      last.tensors = tensors;
      last.workspace = workspace;
      last.params = params;
      last.valid = true;
    }
  }
};

Status usable_device(const PlanOptions& options, Device** device) {
  ATTN_RETURN_IF_ERROR(Device::get(options.device, device));
  // sm_90a code runs on compute capability 9.0 and no other (CUDA programming guide, architecture-specific).
  if ((*device)->compute_major() != 9 || (*device)->compute_minor() != 0) {
    return {StatusCode::kUnavailable,
            "device " + std::to_string(options.device) + " is " + (*device)->name() +
                ", compute capability " + std::to_string((*device)->compute_major()) + "." +
                std::to_string((*device)->compute_minor()) + "; this build has kernels for 9.0 (Hopper)"};
  }
  return {};
}

// What the driver knows of an address.
struct Memory {
  unsigned type = 0;  // CUmemorytype, 0: unknown
  int ordinal = -1;
  unsigned managed = 0;

  Memory(const Driver& driver, const void* data) {
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* values[] = {&type, &ordinal, &managed};
    if (driver.pointer_get_attributes(3, attributes, values, std::bit_cast<CUdeviceptr>(data)) !=
        CUDA_SUCCESS) {
      type = managed = 0;
    }
  }
  [[nodiscard]] bool on_device() const noexcept { return type == CU_MEMORYTYPE_DEVICE || managed != 0; }
};

// Device memory of the plan's device.
Status check_pointer(const Device& device, const char* name, const void* data) {
  const Memory memory(device.driver(), data);
  if (!memory.on_device()) {
    const char* what =
        memory.type == CU_MEMORYTYPE_HOST ? "host memory" : "memory that the driver does not know";
    return core::invalid(name, what, "device memory of device " + std::to_string(device.ordinal()));
  }
  if (memory.managed == 0 && memory.ordinal != device.ordinal()) {
    return core::invalid(name, "memory of device " + std::to_string(memory.ordinal),
                         "device memory of device " + std::to_string(device.ordinal()) + ", the plan's");
  }
  return {};
}

Status check_pointers(const Problem& problem, const CudaPlan& plan, const Tensors& tensors,
                      const void* workspace) {
  const bool with_keys = plan.shape.seqlen_kv > 0;
  const struct {
    const char* name;
    const void* data;
    bool used;
  } pointers[] = {{"q", tensors.q.data, true},
                  {"k", tensors.k.data, with_keys},
                  {"v", tensors.v.data, with_keys},
                  {"o", tensors.o.data, true},
                  {"lse", tensors.lse.data, problem.want_lse},
                  {"sinks", tensors.sinks, problem.sinks},
                  {"alibi_slopes", tensors.alibi_slopes, problem.alibi},
                  {"workspace", workspace, plan.order.dynamic}};
  for (const auto& pointer : pointers) {
    if (pointer.used) {
      ATTN_RETURN_IF_ERROR(check_pointer(*plan.device, pointer.name, pointer.data));
    }
  }
  return {};
}

DenseTensor dense(const TensorView& view) {
  return {view.data, {view.strides[0], view.strides[1], view.strides[2]}};
}

std::string tile_note(const KernelEntry& entry) {
  const sm90::KernelConfig& c = entry.config;
  return "tile: " + std::to_string(c.tile_m()) + " rows x " + std::to_string(c.tile_n) + " keys, " +
         std::to_string(c.warpgroups) + " consumer warpgroups, stages K " + std::to_string(c.k_stages) +
         " V " + std::to_string(c.v_stages) + ", " +
         (c.softmax == sm90::Softmax::kSpeculative ? "speculative" : "classic") + " softmax, " +
         std::to_string(sm90::shared_bytes(entry.key, c)) + " bytes of shared memory";
}

}  // namespace

Status support(const Problem& problem, const PlanOptions& options) {
  ATTN_RETURN_IF_ERROR(kernels_can(problem));
  Device* device = nullptr;
  return usable_device(options, &device);
}

Status plan(const Problem& problem, const PlanOptions& options, std::unique_ptr<BackendPlan>* plan) {
  auto made = std::make_unique<CudaPlan>();
  ATTN_RETURN_IF_ERROR(usable_device(options, &made->device));
  for (const KernelEntry* entry : kernels_for(problem)) {
    if (options.kernel.empty() || public_name(*entry) == options.kernel) {
      made->entry = entry;
      break;
    }
  }
  if (made->entry == nullptr) {
    return core::invalid("kernel", options.kernel, "one of the problem's candidates");
  }
  const KernelEntry& entry = *made->entry;
  made->shape = dense_shape(problem);
  made->order = order_tiles(entry, made->shape, made->device->size());
  made->workspace_bytes = made->order.dynamic ? kCounterBytes : 0;
  made->kernel = public_name(entry);
  made->notes.push_back("device: " + std::to_string(options.device) + ", " + made->device->name());
  made->notes.push_back(tile_note(entry));
  made->notes.emplace_back(
      "loads: TMA; a tensor whose address or strides are no multiples of 16 bytes (or negative) is copied "
      "element by element, which is slower");
  made->notes.push_back(
      "tiles: " + std::to_string(made->order.num_tiles) + " on " + std::to_string(made->device->num_sms()) +
      " SMs, " + (made->order.dynamic ? "claimed " : "") +
      (made->order.longest_first
           ? "longest first in sections of " + std::to_string(made->order.heads_per_section) + " heads"
           : "in order"));
  // Loaded here, so that a run loads nothing and may be captured.
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(*made->device));
  CUfunction function = nullptr;
  ATTN_RETURN_IF_ERROR(made->device->kernel(entry, &function));
  *plan = std::move(made);
  return {};
}

Status run(const PlanImpl& impl, const Tensors& tensors, void* workspace, void* stream) {
  const auto& plan = static_cast<const CudaPlan&>(*impl.backend_plan);
  const DenseShape& shape = plan.shape;
  Device& device = *plan.device;
  if (plan.order.num_tiles == 0) {
    return {};
  }
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(device));
  DenseTensors dense_tensors{dense(tensors.q), dense(tensors.k), dense(tensors.v), dense(tensors.o)};
  if (impl.problem.want_lse) {  // LSE's axes are (batch, heads_q, seqlen_q, 1)
    dense_tensors.lse = static_cast<float*>(tensors.lse.data);
    dense_tensors.lse_strides = {tensors.lse.strides[0], tensors.lse.strides[2], tensors.lse.strides[1]};
  }
  if (impl.problem.sinks) {
    dense_tensors.sinks = tensors.sinks;
  }
  if (impl.problem.alibi) {
    dense_tensors.alibi_slopes = tensors.alibi_slopes;
    dense_tensors.alibi_batch_stride = tensors.alibi_batch_stride;
  }
  ForwardParams params;
  if (!plan.recall(dense_tensors, workspace, &params)) {
    ATTN_RETURN_IF_ERROR(check_pointers(impl.problem, plan, tensors, workspace));
    ATTN_RETURN_IF_ERROR(make_params(device, *plan.entry, shape, dense_tensors, plan.order, &params));
    plan.remember(dense_tensors, workspace, params);
  }
  return launch(device, *plan.entry, params, plan.order, workspace, static_cast<CUstream>(stream));
}

std::vector<std::string> candidates(const Problem& problem, const PlanOptions& /*options*/) {
  std::vector<std::string> names;
  for (const KernelEntry* entry : kernels_for(problem)) {
    names.push_back(public_name(*entry));
  }
  return names;
}

std::string device_name(const PlanOptions& options) {
  Device* device = nullptr;
  return Device::get(options.device, &device).ok() ? device->name() : std::string();
}

std::vector<std::string> kernels() {
  std::vector<std::string> names;
  for (const KernelEntry& entry : kernels_table()) {
    names.push_back(public_name(entry));
  }
  return names;
}

int device_of(const void* data) {
  const Driver* driver = nullptr;
  if (data == nullptr || !open_driver(&driver).ok()) {
    return -1;
  }
  const Memory memory(*driver, data);
  return memory.on_device() ? memory.ordinal : -1;
}

Status allocate(const PlanImpl& impl, std::size_t bytes, void* stream, void** memory) {
  Device& device = *static_cast<const CudaPlan&>(*impl.backend_plan).device;
  Device::Scope scope;
  ATTN_RETURN_IF_ERROR(scope.enter(device));
  // Scratch of a graph would be an allocation of its own at each replay, and the driver does not vouch for
  // its address until then.
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  ATTN_RETURN_IF_ERROR(check(device.driver(),
                             device.driver().stream_is_capturing(static_cast<CUstream>(stream), &capture),
                             "cuStreamIsCapturing"));
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return {
        StatusCode::kUnsupported,
        "stream is being captured, and this call would allocate its workspace; make a plan and run it with a "
        "workspace of your own"};
  }
  CUdeviceptr address = 0;
  const CUresult result = device.driver().mem_alloc_async(&address, bytes, static_cast<CUstream>(stream));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return {StatusCode::kOutOfMemory, "no memory on device " + std::to_string(device.ordinal()) +
                                          " for the workspace of " + std::to_string(bytes) + " bytes"};
  }
  ATTN_RETURN_IF_ERROR(check(device.driver(), result, "cuMemAllocAsync"));
  *memory = std::bit_cast<void*>(address);
  return {};
}

void release(const PlanImpl& impl, void* memory, void* stream) {
  Device& device = *static_cast<const CudaPlan&>(*impl.backend_plan).device;
  Device::Scope scope;
  if (scope.enter(device).ok()) {
    // A failure here leaves the scratch allocated; the call itself has been enqueued.
    (void)device.driver().mem_free_async(std::bit_cast<CUdeviceptr>(memory), static_cast<CUstream>(stream));
  }
}

}  // namespace attn::cuda
