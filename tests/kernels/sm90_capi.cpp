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
  std::snprintf(text, static_cast<std::size_t>(bytes),
                "{\"name\": \"%s\", \"head_dim_qk\": %d, \"head_dim_v\": %d, \"bf16\": %d, \"band\": %d, "
                "\"changed\": %d, "
                "\"tile_m\": %d, \"tile_n\": %d, "
                "\"k_stages\": %d, \"v_stages\": %d, \"q_slots\": %d, \"speculative\": %d, "
                "\"ping_pong\": %d, \"shared_bytes\": %d}",
                entry->name, entry->key.head_dim_qk, entry->key.head_dim_v,
                entry->key.element == sm90::Element::kBFloat16, entry->key.mask == sm90::Mask::kBand,
                entry->key.logits == sm90::Logits::kChanged, c.tile_m(), c.tile_n, c.k_stages, c.v_stages,
                c.q_slots, c.softmax == sm90::Softmax::kSpeculative, c.ping_pong,
                sm90::shared_bytes(entry->key, c));
  return 1;
}

// What is timed: contiguous (batch, seqlen, heads, head_dim) tensors, default scale, bottom-right alignment.
struct Sm90Problem {
  long long batch, seqlen_q, seqlen_kv, heads_q, heads_kv, head_dim_qk, head_dim_v;
  long long window_left, window_right;  // -1: unbounded; causal is window_right 0
  float softcap;                        // 0: none
  int order_mode;                       // 0: the library's, 1: static, 2: dynamic
};

// 0, or an error's text.
ATTN_EXPORT const char* sm90_forward(const char* name, const Sm90Problem* p, const void* q, const void* k,
                                     const void* v, void* o, float* lse, void* workspace, void* stream) {
  static thread_local std::string error;
  const cuda::KernelEntry* entry = find(name);
  if (entry == nullptr) return "no such kernel";
  cuda::Device* device = nullptr;
  Status status = cuda::Device::get(0, &device);
  if (status.ok()) {
    cuda::DenseShape shape;
    shape.batch = p->batch;
    shape.seqlen_q = p->seqlen_q;
    shape.seqlen_kv = p->seqlen_kv;
    shape.heads_q = p->heads_q;
    shape.heads_kv = p->heads_kv;
    shape.head_dim_qk = p->head_dim_qk;
    shape.head_dim_v = p->head_dim_v;
    shape.scale = 1.0F / std::sqrt(static_cast<float>(p->head_dim_qk));
    shape.softcap = p->softcap;
    shape.key_offset = p->seqlen_kv - p->seqlen_q;
    shape.band_lower = p->window_left >= 0 ? shape.key_offset - p->window_left : -p->seqlen_q;
    shape.band_upper = p->window_right >= 0 ? shape.key_offset + p->window_right + 1 : p->seqlen_kv;
    const auto rows = [](long long seqlen, long long heads, long long d) {
      return cuda::RowStrides{seqlen * heads * d, heads * d, d};
    };
    cuda::DenseTensors tensors;
    tensors.q = {q, rows(p->seqlen_q, p->heads_q, p->head_dim_qk)};
    tensors.k = {k, rows(p->seqlen_kv, p->heads_kv, p->head_dim_qk)};
    tensors.v = {v, rows(p->seqlen_kv, p->heads_kv, p->head_dim_v)};
    tensors.o = {o, rows(p->seqlen_q, p->heads_q, p->head_dim_v)};
    tensors.lse = lse;
    tensors.lse_strides = {p->heads_q * p->seqlen_q, 1, p->seqlen_q};
    cuda::TileOrder order = cuda::order_tiles(*entry, shape, device->size());
    if (p->order_mode == 1) order.dynamic = false;
    if (p->order_mode == 2) order.dynamic = true;
    cuda::ForwardParams params;
    if (entry->key.logits == sm90::Logits::kScaled && p->softcap != 0.0F) {
      return "this kernel has no softcap";
    }
    status = cuda::make_params(*device, *entry, shape, tensors, order, &params);
    if (status.ok()) {
      status = cuda::launch(*device, *entry, params, order, workspace, static_cast<CUstream>(stream));
    }
  }
  if (status.ok()) return nullptr;
  error = status.message();
  return error.c_str();
}
