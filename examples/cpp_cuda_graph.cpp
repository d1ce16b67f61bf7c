// C++ with a stream and a CUDA graph: capture one run, then replay it with new contents. The driver is opened
// as libattn opens it, so this builds without CUDA; programs that have its headers call the same functions by
// name. Exit code 77 (skipped) where there is no GPU or this build of libattn has no CUDA backend.
#include <dlfcn.h>

#include <attn/attn.hpp>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

using Pointer = std::uint64_t;  // CUdeviceptr
void* driver = nullptr;

// Calls a driver function; every one used here returns 0 for success.
template <class... Args>
bool cu(const char* name, Args... args) {
  const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(driver, name));
  const int result = function != nullptr ? function(args...) : -1;
  if (result != 0) {
    std::fprintf(stderr, "%s failed with %d\n", name, result);
  }
  return result == 0;
}

}  // namespace

int main() {
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  attn::Problem problem;
  attn::Plan plan;
  attn::Status status = attn::parse("b1 hq8 sq1024 d128 bf16 causal=br", &problem);
  if (status.ok()) {
    status = attn::make_plan(problem, {.backend = attn::Backend::kCuda}, &plan);
  }
  if (driver == nullptr || !status.ok()) {
    std::printf("SKIP: %s\n", driver == nullptr ? "no CUDA driver" : status.message().c_str());
    return 77;
  }
  void *context = nullptr, *stream = nullptr, *graph = nullptr, *exec = nullptr;
  constexpr std::size_t kElements = 1024 * 8 * 128, kBytes = kElements * 2;
  Pointer memory[4] = {}, workspace = 0;
  bool ok = cu("cuInit", 0U) && cu("cuDevicePrimaryCtxRetain", &context, 0) &&
            cu("cuCtxSetCurrent", context) && cu("cuStreamCreate", &stream, 1U) &&
            cu("cuMemAlloc_v2", &workspace, plan.workspace_bytes() + 1);
  for (Pointer& p : memory) {  // q, k, v, o
    ok = ok && cu("cuMemAlloc_v2", &p, kBytes) &&
         cu("cuMemsetD16Async", p, std::uint16_t{0}, kElements, stream);
  }
  const auto view = [&](int n) {
    return attn::TensorView::bshd(reinterpret_cast<void*>(memory[n]), attn::DType::kBFloat16, 1, 1024, 8,
                                  128);
  };
  const attn::Tensors tensors{.q = view(0), .k = view(1), .v = view(2), .o = view(3)};

  ok = ok && cu("cuStreamBeginCapture_v2", stream, 0);
  status = attn::run(plan, tensors, reinterpret_cast<void*>(workspace), plan.workspace_bytes(), stream);
  ok = ok && status.ok() && cu("cuStreamEndCapture", stream, &graph) &&
       cu("cuGraphInstantiateWithFlags", &exec, graph, 0ULL);
  std::vector<std::uint16_t> o(kElements);
  for (const std::uint16_t value : {0x3F80, 0x4040}) {  // V all 1, then all 3: so is O
    ok = ok && cu("cuMemsetD16Async", memory[2], value, kElements, stream) &&
         cu("cuGraphLaunch", exec, stream) && cu("cuStreamSynchronize", stream) &&
         cu("cuMemcpyDtoH_v2", static_cast<void*>(o.data()), memory[3], kBytes);
    for (const std::uint16_t x : o) {
      ok = ok && x == value;
    }
  }
  std::printf("%s%s\n", ok ? "replayed with new contents on " : status.message().c_str(),
              plan.kernel().c_str());
  return ok ? 0 : 1;
}
