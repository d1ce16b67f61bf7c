// Types and shared memory of one kernel: what Key and Config mean in CuTe. Tiles lie at multiples of 1024
// bytes (the 128-byte swizzle repeats there). Tested in tests/unit/cuda_layouts_test.cpp.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>

#include <cute/atom/mma_traits_sm90_gmma.hpp>

#include "cuda/device/layouts.hpp"
#include "cuda/sm90/config.hpp"
#include "cuda/sm90/tile_scheduler.hpp"

namespace attn::sm90 {

using cute::Int;
using cute::SM90::GMMA::Major;
using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

// A ring of kStages: index and the parity of the round.
template <int kStages>
struct Ring {
  int index = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }
};

// Two boxes of O a consumer warp, by which it sends its rows out.
template <class T, int kWarps>
struct OutputBoxes {
  alignas(1024) T o_boxes[kWarps][2][16 * kBoxColumns];
};
template <class T>
struct OutputBoxes<T, 0> {};

template <KernelKey kKeyValue, KernelConfig kConfigValue>
struct Traits {
  static constexpr KernelKey kKey = kKeyValue;
  static constexpr KernelConfig kConfig = kConfigValue;
  static_assert(well_formed(kKey, kConfig), "the numbers of this kernel do not fit the machine");

  using T = cute::conditional_t<kKey.element == Element::kBFloat16, cutlass::bfloat16_t, cutlass::half_t>;
  static constexpr bool kBFloat16 = kKey.element == Element::kBFloat16;
  static constexpr int kHeadDimQk = kKey.head_dim_qk;
  static constexpr int kHeadDimV = kKey.head_dim_v;
  static constexpr int kStoredQk = stored_columns(kHeadDimQk);
  static constexpr int kStoredV = stored_columns(kHeadDimV);
  static constexpr int kTileM = kConfig.tile_m();
  static constexpr int kTileN = kConfig.tile_n;
  // With one Q slot each consumer warp sends O out itself, and the slot takes the next tile's Q as soon as
  // this tile's last product with it is done. Tile infos are needed longer, and have two slots, taken in
  // turn.
  static constexpr bool kDirectO = kConfig.q_slots == 1;
  static constexpr int kInfoSlots = kDirectO ? 2 : kConfig.q_slots;

  // From kRedosToGrow redos of its four warps on, a warpgroup does the rest of a tile's plain blocks as the
  // classic form does, maximum first, so that no block is made twice. Where rows are redone together, or a
  // block's exponentials weigh little beside its products, bf16 does better with wide margins; and with
  // changed logits there are no registers for a second loop.
  static constexpr bool kGrowing = kConfig.softmax == Softmax::kSpeculative && kConfig.ping_pong &&
                                   kKey.logits == Logits::kScaled &&
                                   (!kBFloat16 || (kKey.mask == Mask::kBand && kHeadDimQk <= 128));
  static constexpr int kRedosToGrow = kBFloat16 ? 4 : 1;

  // Masked keys inside a tensor exist: their values may be NaN, which 0 · NaN carries into rows that do not
  // see them. Such a tile is done again, carefully, so that those rows have the bits they always have.
  static constexpr bool kCareful = kKey.mask != Mask::kFull;
  static constexpr int kRedoEarly = 8;  // waiting tiles that make the producer turn to them before new ones
  static constexpr int kRedoCapacity = 16;
  static_assert(kRedoEarly + kInfoSlots <= kRedoCapacity);

  // Blocks of a tile that some of its rows see in part or not at all, at each side, and a bit for each of
  // their keys.
  static constexpr int kMaxMaskedBlocks = 2 * ((kTileM - 1) / kTileN + 2);
  static constexpr int kBadKeyWords = (kMaxMaskedBlocks * kTileN + 31) / 32;

  using LayoutQ = device::KMajorTile<T, kTileM, kStoredQk, kConfig.q_slots>;       // (M, d_qk, slots)
  using LayoutK = device::KMajorTile<T, kTileN, kStoredQk, kConfig.k_stages>;      // (N, d_qk, stages)
  using LayoutVt = device::TransposedTile<T, kTileN, kStoredV, kConfig.v_stages>;  // (d_v, N, stages)
  using LayoutO = device::KMajorTile<T, kTileM, kStoredV, 1>;                      // in a Q slot: (M, d_v)

  static constexpr int kConsumerWarps = 4 * kConfig.warpgroups;

  struct SharedStorage : OutputBoxes<T, kDirectO ? kConsumerWarps : 0> {
    alignas(1024) T q[cute::cosize_v<LayoutQ>];
    alignas(1024) T k[cute::cosize_v<LayoutK>];
    alignas(1024) T v[cute::cosize_v<LayoutVt>];
    alignas(16) TileInfo info[kInfoSlots];
    FullBarrier q_full[kConfig.q_slots];  // the producer's Q tile and info
    // Consumers and store warp: O has left the slot (kDirectO: Q is no longer needed). Every thread that has
    // read the slot's info arrives itself: racecheck does not follow a chain of barriers.
    EmptyBarrier q_empty[kConfig.q_slots];
    EmptyBarrier o_full[kInfoSlots];  // consumers: O is in the slot (kDirectO: the tile is done)
    FullBarrier k_full[kConfig.k_stages];
    EmptyBarrier k_empty[kConfig.k_stages];
    FullBarrier v_full[kConfig.v_stages];
    EmptyBarrier v_empty[kConfig.v_stages];
    EmptyBarrier counter_open;  // the store warp: tiles can be claimed
    EmptyBarrier cleaned;       // consumers: a V stage of a careful tile has no NaN and Inf any more
    // Tiles to be done again (kCareful kernels): flagged by consumers, listed by the store warp, taken by the
    // producer. At most kRedoEarly + q_slots are ever waiting.
    std::int32_t redo_flag[kInfoSlots];
    std::int32_t redo_count;
    std::uint32_t redo_list[kRedoCapacity];  // tile numbers
    // kGrowing: redos of a warpgroup's warps in the tile, in steps of even and of odd blocks.
    std::int32_t redos[kConfig.warpgroups][2];
    // Of a careful tile: keys of its masked blocks that had NaN or Inf in their values (kBand only).
    std::uint32_t bad_keys[kBadKeyWords];
    std::int32_t broadcast;  // from a loader's leader to its other threads (sm90/load.hpp, plain loads)
  };
  static_assert(sizeof(SharedStorage) <= static_cast<std::size_t>(shared_bytes(kKey, kConfig)));

  // Where the info of the tile in a Q slot lies.
  __device__ __forceinline__ static int info_slot(const Ring<kConfig.q_slots>& slot) {
    return kDirectO ? static_cast<int>(slot.phase) : slot.index;
  }

  static constexpr int kPlainLoaders = 96;  // three warps, where some tensor is not for TMA
  static constexpr int kConsumerThreads = 128 * kConfig.warpgroups;
};

}  // namespace attn::sm90
