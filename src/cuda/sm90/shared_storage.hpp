// Types and shared memory of one kernel: what Key and Config mean in CuTe. Tiles lie at multiples of 1024
// bytes (the 128-byte swizzle repeats there). Tested in tests/unit/cuda_layouts_test.cpp.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>

#include <cute/atom/mma_atom.hpp>

#include "cuda/device/layouts.hpp"
#include "cuda/sm90/config.hpp"
#include "cuda/sm90/tile_scheduler.hpp"

namespace attn::sm90 {

using cute::Int;
using cute::SM90::GMMA::Major;
using FullBarrier = cutlass::arch::ClusterTransactionBarrier;
using EmptyBarrier = cutlass::arch::ClusterBarrier;

// The wgmma atom of N columns by name: CuTe's selector falls back to N = 16 in silence where N is not in its
// table, and its extended table doubles the compile time.
template <class T, int kN, bool kFromRegisters, Major kMajorB>
CUTE_HOST_DEVICE constexpr auto wgmma_atom() {
  using namespace cute;
  constexpr Major kA = Major::K;
  if constexpr (is_same_v<T, cutlass::bfloat16_t> && kFromRegisters) {
    if constexpr (kN == 64) {
      return SM90_64x64x16_F32BF16BF16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 96) {
      return SM90_64x96x16_F32BF16BF16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 128) {
      return SM90_64x128x16_F32BF16BF16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 192) {
      return SM90_64x192x16_F32BF16BF16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 256) {
      return SM90_64x256x16_F32BF16BF16_RS<kA, kMajorB>{};
    }
  } else if constexpr (is_same_v<T, cutlass::bfloat16_t>) {
    if constexpr (kN == 64) {
      return SM90_64x64x16_F32BF16BF16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 96) {
      return SM90_64x96x16_F32BF16BF16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 128) {
      return SM90_64x128x16_F32BF16BF16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 192) {
      return SM90_64x192x16_F32BF16BF16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 256) {
      return SM90_64x256x16_F32BF16BF16_SS<kA, kMajorB>{};
    }
  } else if constexpr (kFromRegisters) {
    if constexpr (kN == 64) {
      return SM90_64x64x16_F32F16F16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 96) {
      return SM90_64x96x16_F32F16F16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 128) {
      return SM90_64x128x16_F32F16F16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 192) {
      return SM90_64x192x16_F32F16F16_RS<kA, kMajorB>{};
    }
    if constexpr (kN == 256) {
      return SM90_64x256x16_F32F16F16_RS<kA, kMajorB>{};
    }
  } else {
    if constexpr (kN == 64) {
      return SM90_64x64x16_F32F16F16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 96) {
      return SM90_64x96x16_F32F16F16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 128) {
      return SM90_64x128x16_F32F16F16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 192) {
      return SM90_64x192x16_F32F16F16_SS<kA, kMajorB>{};
    }
    if constexpr (kN == 256) {
      return SM90_64x256x16_F32F16F16_SS<kA, kMajorB>{};
    }
  }
}

template <KernelKey kKeyValue, KernelConfig kConfigValue>
struct Traits {
  static constexpr KernelKey kKey = kKeyValue;
  static constexpr KernelConfig kConfig = kConfigValue;
  static_assert(well_formed(kKey, kConfig), "the numbers of this kernel do not fit the machine");

  using T = cute::conditional_t<kKey.element == Element::kBFloat16, cutlass::bfloat16_t, cutlass::half_t>;
  static constexpr bool kBFloat16 = kKey.element == Element::kBFloat16;
  static constexpr int kHeadDim = kKey.head_dim;
  static constexpr int kTileM = kConfig.tile_m();
  static constexpr int kTileN = kConfig.tile_n;
  static constexpr bool kFlat = kConfig.q_slots > 1 && kConfig.overlap;

  // Masked keys inside a tensor exist: their values may be NaN, which 0 · NaN carries into rows that do not
  // see them. Such a tile is done again, carefully, so that those rows have the bits they always have.
  static constexpr bool kCareful = kKey.mask != Mask::kFull;
  static constexpr int kRedoEarly = 8;  // waiting tiles that make the producer turn to them before new ones
  static constexpr int kRedoCapacity = 16;
  static_assert(kRedoEarly + kConfig.q_slots <= kRedoCapacity);

  using LayoutQ = device::KMajorTile<T, kTileM, kHeadDim, kConfig.q_slots>;        // (M, d, slots)
  using LayoutK = device::KMajorTile<T, kTileN, kHeadDim, kConfig.k_stages>;       // (N, d, stages)
  using LayoutVt = device::TransposedTile<T, kTileN, kHeadDim, kConfig.v_stages>;  // (d, N, stages)

  // One warpgroup each: 64 query rows.
  using MmaS = decltype(cute::make_tiled_mma(wgmma_atom<T, kTileN, kConfig.q_in_registers, Major::K>()));
  using MmaO = decltype(cute::make_tiled_mma(wgmma_atom<T, kHeadDim, true, Major::MN>()));

  struct SharedStorage {
    alignas(1024) T q[cute::cosize_v<LayoutQ>];
    alignas(1024) T k[cute::cosize_v<LayoutK>];
    alignas(1024) T v[cute::cosize_v<LayoutVt>];
    alignas(16) TileInfo info[kConfig.q_slots];
    FullBarrier q_full[kConfig.q_slots];  // the producer's Q tile and info
    // Every thread that has read the slot's info arrives itself: racecheck does not follow a chain of
    // barriers.
    EmptyBarrier q_empty[kConfig.q_slots];  // consumers and store warp: O has left the slot, the info is read
    EmptyBarrier o_full[kConfig.q_slots];   // consumers: O is in the slot
    FullBarrier k_full[kConfig.k_stages];
    EmptyBarrier k_empty[kConfig.k_stages];
    FullBarrier v_full[kConfig.v_stages];
    EmptyBarrier v_empty[kConfig.v_stages];
    // Tiles to be done again (kCareful kernels): flagged by consumers, listed by the store warp, taken by the
    // producer. At most kRedoEarly + q_slots are ever waiting.
    std::int32_t redo_flag[kConfig.q_slots];
    std::int32_t redo_count;
    std::int32_t
        first_bad_key;  // of a careful tile: the least key of a masked block with NaN or Inf in its value
    TileInfo redo_list[kRedoCapacity];
  };
  static_assert(sizeof(SharedStorage) <= static_cast<std::size_t>(shared_bytes(kKey, kConfig)));

  static constexpr int kConsumerWarps = 4 * kConfig.warpgroups;
  static constexpr int kConsumerThreads = 128 * kConfig.warpgroups;
  static constexpr int kBlockRowBytes = 128;  // one TMA box is 64 elements wide
  static constexpr int kChunks = kHeadDim / 64;
};

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

}  // namespace attn::sm90
