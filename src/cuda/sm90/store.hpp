// The store warp: sends finished O tiles out of the Q slots, by TMA from one thread or by the whole warp's
// plain stores, and lists tiles that must be done again. Tested by every kernel test.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/device/ptx.hpp"
#include "cuda/sm90/plain_copy.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits, bool kPlain>
struct Storer {
  using T = typename Traits::T;
  static constexpr KernelConfig kConfig = Traits::kConfig;
  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int lane;  // 0 leads; without kPlain it is alone

  __device__ __forceinline__ void run() {
    Ring<kConfig.q_slots> q;
    Ring<Traits::kInfoSlots> slot;
    device::wait_for_earlier_grids();
    if (params.tile_counter != nullptr && lane == 0) {
      open_counter(params);
      shared.counter_open.arrive();
    }
#pragma unroll 1
    while (true) {
      shared.q_full[q.index].wait(q.phase);
      device::compiler_fence();
      const TileInfo info = shared.info[slot.index];
      if (info.kind == kEnd) {
        break;
      }
      if constexpr (Traits::kDirectO) {
        release_q(q.index);
      }
      shared.o_full[slot.index].wait(slot.phase);
      device::compiler_fence();
      if (info.kind == kTile) {
        if (Traits::kCareful && lane == 0) {
          list_redo(info, slot.index);
        }
        if constexpr (!Traits::kDirectO) {
          store_tile(info, shared.q + slot.index * Traits::kTileM * Traits::kStoredQk);
        }
      }
      if constexpr (!Traits::kDirectO) {
        release_q(q.index);
      }
      q.advance();
      slot.advance();
    }
  }

  // Every lane that has read the slot arrives itself (kernel.hpp counts them).
  __device__ __forceinline__ void release_q(int slot) const {
    shared.q_empty[slot].arrive();
  }

  __device__ __forceinline__ void list_redo(const TileInfo& info, int slot) const {
    if (info.careful) {
      device::bulk_stores_written();  // this tile's first, wrong values are to be overwritten
    } else if (shared.redo_flag[slot] != 0) {
      shared.redo_flag[slot] = 0;
      shared.redo_list[shared.redo_count % Traits::kRedoCapacity] = info.tile;
      __threadfence_block();
      *static_cast<volatile int*>(&shared.redo_count) = shared.redo_count + 1;
    }
  }

  // Rows beyond seqlen_q and columns beyond head_dim_v are clipped.
  __device__ __forceinline__ void store_tile(const TileInfo& info, const T* from) const {
    const int row = info.m_tile * Traits::kTileM;
    if (kPlain && (params.plain & cuda::kPlainO) != 0) {
      auto* base = static_cast<T*>(params.o_data) + info.batch * params.o_strides.batch +
                   info.head * params.o_strides.heads;
      plain_store<Traits::kTileM, Traits::kStoredV>(
          PlainRows<T>{base, params.o_strides.seqlen, params.seqlen_q, params.head_dim_v}, row, from, lane,
          32);
    } else if (lane == 0) {
#pragma unroll
      for (int c = 0; c < Traits::kStoredV / kBoxColumns; ++c) {
        cute::SM90_TMA_STORE_4D::copy(&params.o, from + c * Traits::kTileM * kBoxColumns, c * kBoxColumns,
                                      row, info.head, info.batch);
      }
      cute::tma_store_arrive();
      cute::tma_store_wait<0>();  // the slot has been read; the writes themselves finish with the grid
    }
  }
};

}  // namespace attn::sm90
