// Attention from C++: once in one call, then by a plan, which allocates nothing when it runs.
#include <attn/attn.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

namespace {

std::vector<float> random_floats(std::size_t count) {
  static std::mt19937 generator;
  std::normal_distribution<float> normal;
  std::vector<float> data(count);
  for (float& x : data) {
    x = normal(generator);
  }
  return data;
}

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};

}  // namespace

int main() {
  constexpr std::int64_t kBatch = 2, kSeqlen = 100, kHeads = 4, kHeadDim = 64;
  constexpr std::size_t kSize = kBatch * kSeqlen * kHeads * kHeadDim;
  const std::vector<float> q = random_floats(kSize), k = random_floats(kSize), v = random_floats(kSize);
  std::vector<float> once(kSize), planned(kSize);
  const auto view = [](const std::vector<float>& data) {
    return attn::TensorView::bshd(data.data(), attn::DType::kFloat32, kBatch, kSeqlen, kHeads, kHeadDim);
  };

  attn::ForwardOptions options{.alignment = attn::Alignment::kTopLeft, .window_left = 31, .window_right = 0};
  options.plan.backend = attn::Backend::kCpu;
  if (attn::Status status = attn::forward(view(q), view(k), view(v), view(once), options); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }

  // The same as a problem string; for every token see docs/problem-string.md.
  attn::Problem problem;
  attn::Plan plan;
  attn::Status status = attn::parse("b2 hq4 sq100 d64 fp32 align=tl window=31,0", &problem);
  if (status.ok()) {
    status = attn::make_plan(problem, {.backend = attn::Backend::kCpu}, &plan);
  }
  const std::size_t bytes = (plan.workspace_bytes() + 63) / 64 * 64;
  const std::unique_ptr<void, Free> workspace(bytes > 0 ? std::aligned_alloc(64, bytes) : nullptr);
  attn::Tensors tensors{.q = view(q), .k = view(k), .v = view(v), .o = view(planned)};
  for (int call = 0; call < 3 && status.ok(); ++call) {
    status = attn::run(plan, tensors, workspace.get(), bytes);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("%s", plan.explain().c_str());
  return once == planned ? 0 : 1;
}
