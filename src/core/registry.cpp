// The only place where core names its backends. Tested in tests/unit/plan_test.cpp.
#include "core/plan_impl.hpp"
#include "cpu/cpu_backend.hpp"
#ifdef ATTN_HAVE_CUDA
#include "cuda/cuda_backend.hpp"
#endif

namespace attn::core {

const std::vector<BackendEntry>& backends() {
  static const std::vector<BackendEntry> entries{
#ifdef ATTN_HAVE_CUDA
      {Backend::kCuda, &cuda::support, &cuda::plan, &cuda::run, false, &cuda::device_of, &cuda::allocate,
       &cuda::release, &cuda::candidates, &cuda::device_name, &cuda::kernels},
#endif
      {Backend::kCpu, &cpu::support, &cpu::plan, &cpu::run, true, nullptr, nullptr, nullptr, &cpu::candidates,
       &cpu::device_name, &cpu::kernels},
  };
  return entries;
}

const BackendEntry* find_backend(Backend backend) {
  for (const BackendEntry& entry : backends()) {
    if (entry.backend == backend) {
      return &entry;
    }
  }
  return nullptr;
}

}  // namespace attn::core

namespace attn::inline v1 {

std::vector<CpuLevel> cpu_levels() {
  return cpu::levels();
}

}  // namespace attn::inline v1
