// The order of tiles. A tile is 64·warpgroups query rows of one head of one batch entry. Heads are taken in
// sections whose K and V fit the L2 together; in a section tiles go longest first where their lengths differ
// (causal), else head by head. The producer's one thread claims tiles (in order by stride, or late from a
// counter) and hands them on decoded, beside the Q tile they belong to. Tested by tests/kernels over ragged
// tile counts in both orders.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/params.h"
#include "cuda/sm90/config.hpp"

namespace attn::sm90 {

// What the producer hands on in a Q slot. A pause is no work: it lets the last tile be finished before the
// producer knows whether one has to be done again.
enum SlotKind : std::int32_t { kEnd = 0, kTile = 1, kPause = 2 };

// TileInfo::skipped of a warpgroup all of whose rows lie beyond the last query.
inline constexpr std::uint32_t kNoRows = 0xff;

struct alignas(16) TileInfo {
  std::int32_t kind;
  // Blocks [block_begin, block_end), at least one: a tile that sees nothing has one block, wholly masked.
  // Every row sees all of blocks [unmasked_begin, unmasked_end); where there are none, both are block_begin.
  std::int32_t block_begin;
  std::int32_t block_end;
  std::int32_t unmasked_begin;
  std::int32_t unmasked_end;
  std::int32_t m_tile;
  std::int32_t head;
  std::int32_t batch;
  std::int32_t careful;  // once more, with NaN and Inf taken out of the masked blocks' values
  // 8 bits a warpgroup: blocks at the tile's end of which it sees nothing (its first block is never skipped),
  // or kNoRows. Few, since a row sees one key more than the one before it: see decode_tile.
  std::uint32_t skipped;
  std::uint32_t tile;
  std::int32_t padding;
};

template <Mask kMask, int kTileM, int kTileN>
__device__ __forceinline__ TileInfo decode_tile(const cuda::ForwardParams& params, std::uint32_t tile) {
  // The end of the keys that the tile's last row sees is kTileM - 64 behind that of the first warpgroup's.
  static_assert((kTileM - 64 + kTileN - 1) / kTileN < static_cast<int>(kNoRows) && kTileM <= 4 * 64,
                "TileInfo::skipped has 8 bits for each of 4 warpgroups");
  TileInfo info{};
  info.kind = kTile;
  info.tile = tile;
  const std::uint32_t per_section = params.heads_per_section * params.num_m_tiles;
  const std::uint32_t section = tile / per_section;
  const std::uint32_t in_section = tile - section * per_section;
  const std::uint32_t first_head = section * params.heads_per_section;
  const std::uint32_t heads_left = params.num_heads_total - first_head;
  const std::uint32_t heads = heads_left < params.heads_per_section ? heads_left : params.heads_per_section;
  std::uint32_t flat_head;
  if (params.longest_first) {
    const std::uint32_t rank = in_section / heads;
    info.m_tile = static_cast<int>(params.num_m_tiles - 1 - rank);
    flat_head = first_head + in_section - rank * heads;
  } else {
    const std::uint32_t head = in_section / params.num_m_tiles;
    info.m_tile = static_cast<int>(in_section - head * params.num_m_tiles);
    flat_head = first_head + head;
  }
  const auto heads_q = static_cast<std::uint32_t>(params.heads_q);
  info.batch = static_cast<int>(flat_head / heads_q);
  info.head = static_cast<int>(flat_head - static_cast<std::uint32_t>(info.batch) * heads_q);

  const int first_row = info.m_tile * kTileM;
  const int last_row =
      first_row + kTileM - 1 < params.seqlen_q ? first_row + kTileM - 1 : params.seqlen_q - 1;
  // [any_begin, any_end) holds every key that some row sees, and every row sees [all_begin, all_end).
  const int any_begin = device::key_begin<kMask>(params, first_row);
  const int any_end = device::key_end<kMask>(params, last_row);
  const int all_begin = device::key_begin<kMask>(params, last_row);
  const int all_end = device::key_end<kMask>(params, first_row);
  info.block_begin = any_begin < any_end ? any_begin / kTileN : 0;
  info.block_end = any_begin < any_end ? (any_end + kTileN - 1) / kTileN : 1;
  const int unmasked_begin = (all_begin + kTileN - 1) / kTileN;
  const int unmasked_end = all_end > 0 ? all_end / kTileN : 0;
  const bool some = unmasked_begin < unmasked_end;
  info.unmasked_begin = some ? unmasked_begin : info.block_begin;
  info.unmasked_end = some ? unmasked_end : info.block_begin;
#pragma unroll
  for (int w = 0; w < kTileM / 64; ++w) {
    std::uint32_t skipped = 0;
    if constexpr (kMask == Mask::kBand) {
      const int end = (device::key_end<kMask>(params, first_row + 64 * w + 63) + kTileN - 1) / kTileN;
      const int seen_end = end > info.block_begin ? end : info.block_begin + 1;
      skipped = static_cast<std::uint32_t>(seen_end < info.block_end ? info.block_end - seen_end : 0);
    }
    info.skipped |= (first_row + 64 * w < params.seqlen_q ? skipped : kNoRows) << 8 * w;
  }
  return info;
}

// The masked blocks of a tile, counted in the order in which they are worked on.
__device__ __forceinline__ int masked_ordinal(const TileInfo& tile, int block) {
  return block >= tile.unmasked_end ? tile.block_end - 1 - block
                                    : tile.block_end - tile.unmasked_end + tile.unmasked_begin - 1 - block;
}

// Before the first claim of a block, by one thread: waits until the counter is this launch's. It takes a few
// round trips to L2, so the store warp does it while the first tile is under way.
__device__ __forceinline__ void open_counter(const cuda::ForwardParams& params) {
  using cuda::TileCounter;
  auto* id = reinterpret_cast<unsigned long long*>(&params.tile_counter->id);
  const unsigned long long own = params.launch_id;
  const unsigned long long clearing = ~own;
  while (true) {
    unsigned long long seen;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(id) : "memory");
    if (seen == own) {
      return;
    }
    if (seen != clearing && atomicCAS(id, seen, clearing) == seen) {
      params.tile_counter->next = 0;
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(id), "l"(own) : "memory");
      return;
    }
  }
}

// The tile after `tile` for this block: a stride away, or the next unclaimed one.
__device__ __forceinline__ std::uint32_t next_tile(const cuda::ForwardParams& params, std::uint32_t tile) {
  if (params.tile_counter == nullptr) {
    return tile + gridDim.x;
  }
  const std::uint32_t claim = atomicAdd(&params.tile_counter->next, 1u);
  // Every block stops at its first claim beyond the last tile, so there are num_tiles claims, and this is the
  // last.
  if (claim == params.num_tiles - 1) {
    params.tile_counter->id = 0;
  }
  return gridDim.x + claim;
}

}  // namespace attn::sm90
