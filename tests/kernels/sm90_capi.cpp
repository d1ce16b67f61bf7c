// A few C functions over the kernels by name, for bench/h200: Python times each kernel of the table (and of
// the study) beside its peers on torch tensors. Development only; the library's own C ABI is
// include/attn/attn.h.
#include <cmath>
#include <cstring>
#include <string>

#include "cuda/launch.hpp"

namespace {

using namespace attn;

const cuda::KernelEntry* find(const char* name) {
  for (const auto& entry : cuda::kernels_table()) {
    if (std::strcmp(entry.name, name) == 0) return &entry;
  }
#ifdef ATTN_CHECK_STUDY
  for (const auto& entry : cuda::study_table()) {
    if (std::strcmp(entry.name, name) == 0) return &entry;
  }
#endif
  return nullptr;
}

}  // namespace

#define ATTN_EXPORT extern "C" __attribute__((visibility("default")))

// The i-th kernel's name and its config as JSON, or 0.
ATTN_EXPORT int sm90_kernel(int i, char* text, int bytes) {
  const auto kernels = cuda::kernels_table();
  const cuda::KernelEntry* entry = nullptr;
  if (i < static_cast<int>(kernels.size())) {
    entry = &kernels[static_cast<std::size_t>(i)];
  }
#ifdef ATTN_CHECK_STUDY
  const auto study = cuda::study_table();
  if (entry == nullptr && i - static_cast<int>(kernels.size()) < static_cast<int>(study.size())) {
    entry = &study[static_cast<std::size_t>(i) - kernels.size()];
  }
#endif
  if (entry == nullptr) return 0;
  const auto& c = entry->config;
  std::snprintf(
      text, static_cast<std::size_t>(bytes),
      "{\"name\": \"%s\", \"head_dim\": %d, \"bf16\": %d, \"causal\": %d, \"tile_m\": %d, \"tile_n\": %d, "
      "\"k_stages\": %d, \"v_stages\": %d, \"q_slots\": %d, \"q_in_registers\": %d, \"speculative\": %d, "
      "\"ping_pong\": %d, \"overlap\": %d, \"shared_bytes\": %d}",
      entry->name, entry->key.head_dim, entry->key.element == sm90::Element::kBFloat16,
      entry->key.mask == sm90::Mask::kCausal, c.tile_m(), c.tile_n, c.k_stages, c.v_stages, c.q_slots,
      c.q_in_registers, c.softmax == sm90::Softmax::kSpeculative, c.ping_pong, c.overlap,
      sm90::shared_bytes(entry->key, c));
  return 1;
}

// Contiguous (batch, seqlen, heads, head_dim) tensors, equal lengths, default scale. 0, or an error's text.
ATTN_EXPORT const char* sm90_forward(const char* name, const void* q, const void* k, const void* v, void* o,
                                     float* lse, long long batch, long long seqlen_q, long long seqlen_kv,
                                     long long heads_q, long long heads_kv, int order_mode, void* workspace,
                                     void* stream) {
  static thread_local std::string error;
  const cuda::KernelEntry* entry = find(name);
  if (entry == nullptr) return "no such kernel";
  cuda::Device* device = nullptr;
  Status status = cuda::Device::get(0, &device);
  if (status.ok()) {
    const long long d = entry->key.head_dim;
    const cuda::DenseShape shape{batch,
                                 seqlen_q,
                                 seqlen_kv,
                                 heads_q,
                                 heads_kv,
                                 1.0F / std::sqrt(static_cast<float>(d)),
                                 seqlen_kv - seqlen_q};
    const cuda::RowStrides sq{seqlen_q * heads_q * d, heads_q * d, d};
    const cuda::RowStrides skv{seqlen_kv * heads_kv * d, heads_kv * d, d};
    const cuda::DenseTensors tensors{{q, sq}, {k, skv}, {v, skv},
                                     {o, sq}, lse,      {heads_q * seqlen_q, 1, seqlen_q}};
    cuda::TileOrder order = cuda::order_tiles(*entry, shape, device->l2_bytes());
    if (order_mode == 1) order.dynamic = false;
    if (order_mode == 2) order.dynamic = true;
    cuda::ForwardParams params;
    status = cuda::make_params(*device, *entry, shape, tensors, order, &params);
    if (status.ok()) {
      status = cuda::launch(*device, *entry, params, order, workspace, static_cast<CUstream>(stream));
    }
  }
  if (status.ok()) return nullptr;
  error = status.message();
  return error.c_str();
}
