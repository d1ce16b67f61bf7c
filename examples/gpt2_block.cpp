// A GPT-2-shaped decoder block on the CPU: a token at a time, its key and value appended to the cache by the
// call that reads it. Checked against causal attention over the whole sequence at once.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int kWidth = 768, kHeads = 12, kDim = 64, kTokens = 24, kCapacity = 64;
using Row = std::vector<float>;

static Row linear(unsigned seed, int out, const Row& x) {  // W·x, with small fixed weights
  Row y(static_cast<std::size_t>(out));
  for (float& sum : y) {
    for (const float value : x) {
      seed = seed * 1664525U + 1013904223U;
      sum += value * (static_cast<float>(seed >> 16) / 65536.0F - 0.5F) * 0.1F;
    }
  }
  return y;
}

static Row layer_norm(Row x) {
  float mean = 0, variance = 0;
  for (const float v : x) mean += v / kWidth;
  for (const float v : x) variance += (v - mean) * (v - mean) / kWidth;
  for (float& v : x) v = (v - mean) / std::sqrt(variance + 1e-5F);
  return x;
}

static Row add(Row x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}

static Row mlp(const Row& x) {
  Row hidden = linear(3, 4 * kWidth, layer_norm(x));
  for (float& h : hidden) h *= 0.5F * (1 + std::tanh(0.7978846F * (h + 0.044715F * h * h * h)));  // GELU
  return linear(4, kWidth, hidden);
}

static attn::TensorView view(const float* data, int rows) {
  return attn::TensorView::bshd(data, attn::DType::kFloat32, 1, rows, kHeads, kDim);
}

int main() {
  attn::Problem step;
  attn::Plan plan;
  attn::Status status = attn::parse("b1 hq12 sq1 sk64 d64 fp32 causal=br seqused new=1", &step);
  if (status.ok()) status = attn::make_plan(step, {.backend = attn::Backend::kCpu}, &plan);
  void* workspace = std::aligned_alloc(64, (plan.workspace_bytes() + 127) / 64 * 64);
  Row k_cache(kCapacity * kWidth), v_cache(kCapacity * kWidth), q_all, stepped, at_once(kTokens * kWidth);
  Row x(kWidth, 1.0F), o(kWidth);
  x[0] = -1.0F;
  for (std::int32_t t = 0; t < kTokens && status.ok(); ++t) {
    const Row qkv = linear(1, 3 * kWidth, layer_norm(x));
    attn::Tensors call{.q = view(qkv.data(), 1), .o = view(o.data(), 1), .seqused_kv = &t};
    call.k = view(k_cache.data(), kCapacity), call.v = view(v_cache.data(), kCapacity);
    call.k_new = view(&qkv[kWidth], 1), call.v_new = view(&qkv[2 * kWidth], 1);
    status = attn::run(plan, call, workspace, plan.workspace_bytes());
    q_all.insert(q_all.end(), qkv.begin(), qkv.begin() + kWidth);
    stepped.insert(stepped.end(), o.begin(), o.end());
    x = add(x, linear(2, kWidth, o));
    x = add(x, mlp(x));  // stands for the next token's embedding
  }
  std::free(workspace);
  attn::ForwardOptions whole{.causal = true, .alignment = attn::Alignment::kBottomRight};
  whole.plan.backend = attn::Backend::kCpu;
  status = !status.ok() ? status
                        : attn::forward(view(q_all.data(), kTokens), view(k_cache.data(), kTokens),
                                        view(v_cache.data(), kTokens), view(at_once.data(), kTokens), whole);
  float worst = 0;
  for (std::size_t i = 0; i < stepped.size(); ++i) {
    worst = std::fmax(worst, std::fabs(stepped[i] - at_once[i]));
  }
  std::printf("%d tokens by %s; step by step and at once differ by at most %g %s\n", kTokens,
              plan.kernel().c_str(), static_cast<double>(worst), status.message().c_str());
  return status.ok() && !stepped.empty() && worst < 1e-4F ? 0 : 1;
}
