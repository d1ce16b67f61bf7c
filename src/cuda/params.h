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

// Element strides of a (batch, seqlen, heads, head_dim) tensor whose head_dim is contiguous.
struct RowStrides {
  std::int64_t batch;
  std::int64_t seqlen;
  std::int64_t heads;
};

// Bits of ForwardParams::plain: tensors whose address or strides are not for TMA, and have no map.
inline constexpr std::int32_t kPlainQ = 1;
inline constexpr std::int32_t kPlainK = 2;
inline constexpr std::int32_t kPlainV = 4;
inline constexpr std::int32_t kPlainO = 8;

// From which blocks claim tiles, in the workspace. It needs no clearing before a launch (a memset on the
// stream costs the device 2 µs and the host a call): the first claim of a launch finds another id than the
// launch's own and starts the count; the last one clears the id, so that a graph's replay, which has the same
// id, starts it again.
struct TileCounter {
  std::uint64_t
      id;  // of the launch that counts; its complement while the count is being cleared; 0 between launches
  std::uint32_t next;
  std::uint32_t padding;
};

struct ForwardParams {
  TensorMap q;  // dims (head_dim_qk, seqlen_q, heads_q, batch), box (64, tile_m, 1, 1), 128-byte swizzle
  TensorMap k;  // dims (head_dim_qk, seqlen_kv, heads_kv, batch), box (64, tile_n, 1, 1)
  TensorMap v;  // as k, with head_dim_v
  TensorMap o;  // dims as q, with head_dim_v; box (64, sm90::o_box_rows, 1, 1)

  // The same tensors by address: read by plain loads (sm90/plain_copy.hpp) and by the exact path
  // (device/exact_row.hpp).
  const void* q_data;
  const void* k_data;
  const void* v_data;
  void* o_data;
  RowStrides q_strides;
  RowStrides k_strides;
  RowStrides v_strides;
  RowStrides o_strides;
  float* lse;  // null: not wanted. Strides of (batch, heads_q, seqlen_q).
  RowStrides lse_strides;
  const float* sinks;         // null, or heads_q logits
  const float* alibi_slopes;  // null, or heads_q slopes a batch entry
  std::int64_t alibi_batch_stride;

  std::int32_t seqlen_q;
  std::int32_t seqlen_kv;
  std::int32_t heads_q;
  std::int32_t group_size;   // heads_q / heads_kv
  std::int32_t head_dim_qk;  // the problem's, multiples of 8, at most the kernel's
  std::int32_t head_dim_v;
  // Row i sees keys [max(0, i + band_lower), min(seqlen_kv, i + band_upper)); read by band kernels only.
  std::int32_t band_lower;
  std::int32_t band_upper;
  std::int32_t key_offset;  // `off` of the contract: ALiBi's bias is slope · (j − i − key_offset)
  // |scale| · log2(e), at least the smallest positive float: see docs/kernels/sm90_forward.md on scale 0.
  float scale_log2;
  float softcap;          // 0: none
  std::int32_t negate_q;  // the scale is negative: Q is negated once it is in shared memory
  std::int32_t lse_has_sink;
  std::int32_t plain;  // kPlain bits

  // Tile order (sm90/tile_scheduler.hpp).
  std::uint32_t num_tiles;
  std::uint32_t num_m_tiles;
  std::uint32_t num_heads_total;    // batch · heads_q
  std::uint32_t heads_per_section;  // heads that run side by side so that their K and V stay in L2
  std::int32_t longest_first;       // in a section; else head by head
  TileCounter* tile_counter;        // null: static order
  std::uint64_t launch_id;          // never 0, and no other launch's
};

static_assert(std::is_trivially_copyable_v<ForwardParams>);
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64, "cuda.h: CUtensorMap");
static_assert(sizeof(ForwardParams) <= 4096, "kernel parameters: 4 KB before PTX ISA 8.1");

}  // namespace attn::cuda
