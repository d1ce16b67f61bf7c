// The kernel ABI: the one argument of every sm90 forward kernel, passed by value as __grid_constant__. Plain
// C++ on both sides: the host fills it (src/cuda/launch.cpp), device code only reads it. Tested by every
// conformance case; its layout is asserted on both sides below.
#pragma once

#include <cstdint>
#include <type_traits>

namespace attn::cuda {

// What cuTensorMapEncodeTiled writes (a CUtensorMap), without cuda.h.
struct alignas(64) TensorMap {
  std::uint64_t opaque[16];
};

// Base address and element strides of a (batch, seqlen, heads, head_dim) tensor whose head_dim is contiguous.
struct RowStrides {
  std::int64_t batch;
  std::int64_t seqlen;
  std::int64_t heads;
};

struct ForwardParams {
  TensorMap q;  // dims (head_dim, seqlen_q, heads_q, batch), box (64, tile_m, 1, 1), 128-byte swizzle
  TensorMap k;  // dims (head_dim, seqlen_kv, heads_kv, batch), box (64, tile_n, 1, 1)
  TensorMap v;  // as k
  TensorMap o;  // as q, with head_dim_v

  // The same tensors by address: read only by the exact path (device/exact_row.hpp).
  const void* q_data;
  const void* k_data;
  const void* v_data;
  RowStrides q_strides;
  RowStrides k_strides;
  RowStrides v_strides;
  float* lse;  // null: not wanted. Strides of (batch, heads_q, seqlen_q).
  std::int64_t lse_stride_batch;
  std::int64_t lse_stride_heads;
  std::int64_t lse_stride_seqlen;

  std::int32_t seqlen_q;
  std::int32_t seqlen_kv;
  std::int32_t heads_q;
  std::int32_t group_size;     // heads_q / heads_kv
  std::int32_t causal_offset;  // query i sees key j iff j <= i + causal_offset; read by causal kernels only
  // |scale| · log2(e), at least the smallest positive float: see docs/kernels/sm90_forward.md on scale 0.
  float scale_log2;
  std::int32_t negate_q;  // the scale is negative: Q is negated once it is in shared memory

  // Tile order (sm90/tile_scheduler.hpp).
  std::int32_t num_tiles;
  std::int32_t num_m_tiles;
  std::int32_t num_heads_total;    // batch · heads_q
  std::int32_t heads_per_section;  // heads that run side by side so that their K and V stay in L2
  std::uint32_t* tile_counter;     // zero at launch; null: static order
};

static_assert(std::is_trivially_copyable_v<ForwardParams>);
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64, "cuda.h: CUtensorMap");
static_assert(sizeof(ForwardParams) <= 4096, "kernel parameters: 4 KB before PTX ISA 8.1");

}  // namespace attn::cuda
