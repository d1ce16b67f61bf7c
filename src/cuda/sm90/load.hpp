// The producer: one thread brings Q, K and V tiles by TMA and hands on decoded tile infos; the store warp
// sends finished O tiles out of the Q slots and lists those that must be done again. Contract: K runs one
// block ahead of V, as the consumers use them:
//   Q K(n-1) | K(n-2) V(n-1) | ... | K(0) V(1) | [next tile's Q K(n'-1)] V(0) | ...
// Tested by every kernel test.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/device/ptx.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct Loader {
  using T = typename Traits::T;
  static constexpr KernelConfig kConfig = Traits::kConfig;
  // K and V are read again by other tiles of the head; Q is read once.
  static constexpr auto kKeep = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  static constexpr auto kPass = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;

  // A tile of kRows rows from `row`, box by box, 64 elements of head_dim each.
  template <int kRows>
  __device__ __forceinline__ static void load_tile(const cuda::TensorMap& map, FullBarrier& full, T* to,
                                                   int row, int head, int batch, std::uint64_t hint) {
    full.arrive_and_expect_tx(kRows * Traits::kHeadDim * static_cast<int>(sizeof(T)));
#pragma unroll
    for (int c = 0; c < Traits::kChunks; ++c) {
      cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), hint, to + c * kRows * 64,
                                   c * 64, row, head, batch);
    }
  }

  __device__ __forceinline__ void run() {
    Ring<kConfig.q_slots> q;
    Ring<kConfig.k_stages> k;
    Ring<kConfig.v_stages> v;
    int last_head = 0;  // of the block whose V is still to come
    int last_batch = 0;
    bool v_pending = false;
    auto load_k = [&](int block, int kv_head, int batch) {
      shared.k_empty[k.index].wait(k.phase ^ 1);
      load_tile<Traits::kTileN>(params.k, shared.k_full[k.index],
                                shared.k + k.index * Traits::kTileN * Traits::kHeadDim,
                                block * Traits::kTileN, kv_head, batch, kKeep);
      k.advance();
    };
    auto load_v = [&](int block, int kv_head, int batch) {
      shared.v_empty[v.index].wait(v.phase ^ 1);
      load_tile<Traits::kTileN>(params.v, shared.v_full[v.index],
                                shared.v + v.index * Traits::kTileN * Traits::kHeadDim,
                                block * Traits::kTileN, kv_head, batch, kKeep);
      v.advance();
    };

    auto load_pending_v = [&]() {
      if (v_pending) {
        load_v(0, last_head, last_batch);
        v_pending = false;
      }
    };
    // A slot without a tile: a pause or the end.
    auto send = [&](SlotKind kind) {
      shared.q_empty[q.index].wait(q.phase ^ 1);
      shared.info[q.index].kind = kind;
      shared.q_full[q.index].arrive();
      q.advance();
    };

    int tile = static_cast<int>(blockIdx.x);
    int redone = 0;
#pragma unroll 1
    while (true) {
      TileInfo info;
      const bool more = tile < params.num_tiles;
      bool again = false;
      if constexpr (Traits::kCareful) {
        const int waiting = *static_cast<volatile int*>(&shared.redo_count) - redone;
        __threadfence_block();
        again = waiting >= (more ? Traits::kRedoEarly : 1);
        if (again) {
          info = shared.redo_list[redone++ % Traits::kRedoCapacity];
          info.careful = 1;
        } else if (!more) {
          // All is handed out. Let it be finished; then see whether something must be done again.
          send(kPause);
          load_pending_v();
          wait_for_all_slots(q);
          if (*static_cast<volatile int*>(&shared.redo_count) == redone) {
            send(kEnd);
            return;
          }
          continue;
        }
      } else if (!more) {
        send(kEnd);
        load_pending_v();
        return;
      }
      if (!again) {
        info = decode_tile<Traits::kKey.mask, Traits::kTileM, Traits::kTileN>(params, tile);
      }
      const int kv_head = info.head / params.group_size;
      // With one Q slot the slot is busy until O has left it: K need not wait for that.
      if constexpr (!Traits::kFlat) {
        load_k(info.num_blocks - 1, kv_head, info.batch);
      }
      shared.q_empty[q.index].wait(q.phase ^ 1);
      shared.info[q.index] = info;
      load_tile<Traits::kTileM>(params.q, shared.q_full[q.index],
                                shared.q + q.index * Traits::kTileM * Traits::kHeadDim,
                                info.m_tile * Traits::kTileM, info.head, info.batch, kPass);
      q.advance();
      if constexpr (Traits::kFlat) {
        load_k(info.num_blocks - 1, kv_head, info.batch);
      }
      load_pending_v();
#pragma unroll 1
      for (int block = info.num_blocks - 2; block >= 0; --block) {
        load_k(block, kv_head, info.batch);
        load_v(block + 1, kv_head, info.batch);
      }
      if constexpr (Traits::kFlat) {
        last_head = kv_head;
        last_batch = info.batch;
        v_pending = true;
      } else {
        load_v(0, kv_head, info.batch);
      }
      if (!again) {
        tile = next_tile(params, tile);
      }
    }
  }

  __device__ __forceinline__ void wait_for_all_slots(Ring<kConfig.q_slots> q) {
#pragma unroll 1
    for (int i = 0; i < kConfig.q_slots; ++i) {
      shared.q_empty[q.index].wait(q.phase ^ 1);
      q.advance();
    }
    device::compiler_fence();
  }
};

template <class Traits>
struct Storer {
  static constexpr KernelConfig kConfig = Traits::kConfig;
  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;

  // One thread. TMA clips the rows beyond seqlen_q.
  __device__ __forceinline__ void run() {
    Ring<kConfig.q_slots> slot;
#pragma unroll 1
    while (true) {
      shared.q_full[slot.index].wait(slot.phase);
      device::compiler_fence();
      const TileInfo info = shared.info[slot.index];
      if (info.kind == kEnd) {
        break;
      }
      shared.o_full[slot.index].wait(slot.phase);
      device::compiler_fence();
      if (info.kind == kPause) {
        shared.q_empty[slot.index].arrive();
        slot.advance();
        continue;
      }
      if constexpr (Traits::kCareful) {
        if (info.careful) {
          device::bulk_stores_written();  // this tile's first, wrong values are to be overwritten
        } else if (shared.redo_flag[slot.index] != 0) {
          shared.redo_flag[slot.index] = 0;
          shared.redo_list[shared.redo_count % Traits::kRedoCapacity] = info;
          __threadfence_block();
          *static_cast<volatile int*>(&shared.redo_count) = shared.redo_count + 1;
        }
      }
      const auto* from = shared.q + slot.index * Traits::kTileM * Traits::kHeadDim;
#pragma unroll
      for (int c = 0; c < Traits::kChunks; ++c) {
        cute::SM90_TMA_STORE_4D::copy(&params.o, from + c * Traits::kTileM * 64, c * 64,
                                      info.m_tile * Traits::kTileM, info.head, info.batch);
      }
      cute::tma_store_arrive();
      cute::tma_store_wait<0>();  // the slot has been read; the writes themselves finish with the grid
      shared.q_empty[slot.index].arrive();
      slot.advance();
    }
  }
};

}  // namespace attn::sm90
