// The order of tiles. A tile is 64·warpgroups query rows of one head of one batch entry. Heads are taken in
// sections whose K and V fit the L2 together; in a section causal tiles go longest first, and full ones head
// by head. The producer's one thread claims tiles (in order by stride, or late from a counter) and hands them
// on decoded, beside the Q tile they belong to. Tested by tests/kernels over ragged tile counts in both
// orders.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/params.h"
#include "cuda/sm90/config.hpp"

namespace attn::sm90 {

// What the producer hands on in a Q slot. A pause is no work: it lets the last tile be finished before the
// producer knows whether one has to be done again.
enum SlotKind : std::int32_t { kEnd = 0, kTile = 1, kPause = 2 };

struct alignas(16) TileInfo {
  std::int32_t kind;
  std::int32_t num_blocks;    // at least 1: a tile that sees nothing has one block, wholly masked
  std::int32_t num_unmasked;  // blocks [0, num_unmasked) are seen whole by every row
  std::int32_t careful;       // once more, with NaN and Inf taken out of the masked blocks' values
  std::int32_t m_tile;
  std::int32_t head;
  std::int32_t batch;
  std::int32_t padding;
};

template <Mask kMask, int kTileM, int kTileN>
__device__ __forceinline__ TileInfo decode_tile(const cuda::ForwardParams& params, int tile) {
  TileInfo info{};
  info.kind = kTile;
  const int per_section = params.heads_per_section * params.num_m_tiles;
  const int section = tile / per_section;
  const int in_section = tile - section * per_section;
  const int first_head = section * params.heads_per_section;
  const int heads_left = params.num_heads_total - first_head;
  const int heads = heads_left < params.heads_per_section ? heads_left : params.heads_per_section;
  int flat_head;
  if constexpr (kMask == Mask::kCausal) {
    const int rank = in_section / heads;
    info.m_tile = params.num_m_tiles - 1 - rank;  // the longest first
    flat_head = first_head + in_section - rank * heads;
  } else {
    const int head = in_section / params.num_m_tiles;
    info.m_tile = in_section - head * params.num_m_tiles;
    flat_head = first_head + head;
  }
  info.batch = flat_head / params.heads_q;
  info.head = flat_head - info.batch * params.heads_q;

  const int first_row = info.m_tile * kTileM;
  const int last_row =
      first_row + kTileM - 1 < params.seqlen_q ? first_row + kTileM - 1 : params.seqlen_q - 1;
  const int any = device::key_end<kMask>(params, last_row);   // keys that some row sees
  const int all = device::key_end<kMask>(params, first_row);  // keys that every row sees
  info.num_blocks = any > kTileN ? (any + kTileN - 1) / kTileN : 1;
  info.num_unmasked = all > 0 ? all / kTileN : 0;
  return info;
}

// The tile after `tile` for this block: a stride away, or the next unclaimed one.
__device__ __forceinline__ int next_tile(const cuda::ForwardParams& params, int tile) {
  if (params.tile_counter != nullptr) {
    return static_cast<int>(gridDim.x + atomicAdd(params.tile_counter, 1u));
  }
  return tile + static_cast<int>(gridDim.x);
}

}  // namespace attn::sm90
