// The producer: brings Q, K and V tiles, by TMA from one thread, and hands on decoded tile infos. Contract: K
// runs one block ahead of V, as the consumers use them:
//   Q K(n-1) | K(n-2) V(n-1) | ... | K(0) V(1) | [next tile's Q K(n'-1)] V(0) | ...
// With tensors that TMA does not take, three warps run the same loop in step and copy those tiles by plain
// loads. Tested by every kernel test.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/device/ptx.hpp"
#include "cuda/sm90/plain_copy.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits, bool kPlain>
struct Loader {
  using T = typename Traits::T;
  static constexpr KernelConfig kConfig = Traits::kConfig;
  static constexpr int kThreads = kPlain ? Traits::kPlainLoaders : 1;  // each arrives at what has been loaded
  static constexpr int kBarrier = 7;  // named, of the loader's warps; the consumers have 0 to 6
  // K and V are read again by other tiles of the head; Q is read once.
  static constexpr auto kKeep = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  static constexpr auto kPass = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int thread;  // 0 … kThreads − 1; thread 0 leads

  Ring<kConfig.q_slots> q;
  Ring<kConfig.k_stages> k;
  Ring<kConfig.v_stages> v;
  int last_block;  // whose V is still to come
  int last_head;
  int last_batch;
  bool v_pending = false;

  __device__ __forceinline__ void sync() const {
    if constexpr (kPlain) {
      cutlass::arch::NamedBarrier::sync(kThreads, kBarrier);
    }
  }
  // The leader's value, to all.
  template <class Value>
  __device__ __forceinline__ Value broadcast(Value value) const {
    if constexpr (kPlain) {
      sync();
      if (thread == 0) {
        shared.broadcast = static_cast<std::int32_t>(value);
      }
      sync();
      value = static_cast<Value>(*static_cast<volatile std::int32_t*>(&shared.broadcast));
    }
    return value;
  }

  // A tile of kRows rows from `row`, box by box, 64 elements of head_dim each.
  template <int kRows, int kStored>
  __device__ __forceinline__ void load_tile(std::int32_t plain_bit, const cuda::TensorMap& map,
                                            const void* data, const cuda::RowStrides& strides, int num_rows,
                                            int num_columns, FullBarrier& full, T* to, int row, int head,
                                            int batch, std::uint64_t hint) const {
    if (kPlain && (params.plain & plain_bit) != 0) {
      const auto* base = static_cast<const T*>(data) + batch * strides.batch + head * strides.heads;
      plain_load<kRows, kStored>(PlainRows<const T>{base, strides.seqlen, num_rows, num_columns}, row, to,
                                 thread, kThreads);
      cutlass::arch::fence_view_async_shared();
      full.arrive();
      return;
    }
    if (thread != 0) {
      full.arrive();
    } else {
      full.arrive_and_expect_tx(kRows * kStored * static_cast<int>(sizeof(T)));
#pragma unroll
      for (int c = 0; c < kStored / kBoxColumns; ++c) {
        cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), hint,
                                     to + c * kRows * kBoxColumns, c * kBoxColumns, row, head, batch);
      }
    }
  }

  __device__ __forceinline__ void load_q(const TileInfo& info) {
    shared.q_empty[q.index].wait(q.phase ^ 1);
    if (thread == 0) {
      shared.info[Traits::info_slot(q)] = info;
    }
    load_tile<Traits::kTileM, Traits::kStoredQk>(cuda::kPlainQ, params.q, params.q_data, params.q_strides,
                                                 params.seqlen_q, params.head_dim_qk, shared.q_full[q.index],
                                                 shared.q + q.index * Traits::kTileM * Traits::kStoredQk,
                                                 info.m_tile * Traits::kTileM, info.head, info.batch, kPass);
    q.advance();
  }
  __device__ __forceinline__ void load_k(int block, int kv_head, int batch) {
    shared.k_empty[k.index].wait(k.phase ^ 1);
    load_tile<Traits::kTileN, Traits::kStoredQk>(cuda::kPlainK, params.k, params.k_data, params.k_strides,
                                                 params.seqlen_kv, params.head_dim_qk, shared.k_full[k.index],
                                                 shared.k + k.index * Traits::kTileN * Traits::kStoredQk,
                                                 block * Traits::kTileN, kv_head, batch, kKeep);
    k.advance();
  }
  __device__ __forceinline__ void load_v(int block, int kv_head, int batch) {
    shared.v_empty[v.index].wait(v.phase ^ 1);
    load_tile<Traits::kTileN, Traits::kStoredV>(cuda::kPlainV, params.v, params.v_data, params.v_strides,
                                                params.seqlen_kv, params.head_dim_v, shared.v_full[v.index],
                                                shared.v + v.index * Traits::kTileN * Traits::kStoredV,
                                                block * Traits::kTileN, kv_head, batch, kKeep);
    v.advance();
  }
  __device__ __forceinline__ void load_pending_v() {
    if (v_pending) {
      load_v(last_block, last_head, last_batch);
      v_pending = false;
    }
  }
  // A slot without a tile: a pause or the end.
  __device__ __forceinline__ void send(SlotKind kind) {
    shared.q_empty[q.index].wait(q.phase ^ 1);
    if (thread == 0) {
      shared.info[Traits::info_slot(q)].kind = kind;
    }
    shared.q_full[q.index].arrive();
    q.advance();
  }
  __device__ __forceinline__ int redo_count() const {
    const int count = *static_cast<volatile int*>(&shared.redo_count);
    __threadfence_block();
    return broadcast(count);
  }

  __device__ __forceinline__ void run() {
    if constexpr (!kPlain) {  // parameters: there before the kernels ahead of this one have ended
      for (const cuda::TensorMap* map : {&params.q, &params.k, &params.v}) {
        cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(map));
      }
    }
    std::uint32_t tile = blockIdx.x;
    int redone = 0;
#pragma unroll 1
    while (true) {
      const bool more = tile < params.num_tiles;
      bool again = false;
      std::uint32_t work = tile;
      if constexpr (Traits::kCareful) {
        const int waiting = redo_count() - redone;
        again = waiting >= (more ? Traits::kRedoEarly : 1);
        if (again) {
          work = shared.redo_list[redone++ % Traits::kRedoCapacity];
        } else if (!more) {
          // All is handed out. Let it be finished; then see whether something must be done again.
          send(kPause);
          load_pending_v();
          wait_for_all_slots();
          if (redo_count() == redone) {
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
      TileInfo info = decode_tile<Traits::kKey.mask, Traits::kTileM, Traits::kTileN>(params, work);
      info.careful = again ? 1 : 0;
      if (tile == blockIdx.x) {  // nothing of an earlier kernel has been read so far
        device::wait_for_earlier_grids();
      }
      load_all(info);
      if (!again) {
        tile = broadcast(thread == 0 ? claim(tile) : 0u);
      }
    }
  }

  __device__ __forceinline__ std::uint32_t claim(std::uint32_t tile) const {
    if (params.tile_counter != nullptr) {
      shared.counter_open.wait(0);
    }
    return next_tile(params, tile);
  }

  __device__ __forceinline__ void load_all(const TileInfo& info) {
    const int kv_head = info.head / params.group_size;
    // With one Q slot this tile's V comes before the next tile's Q, which waits for the last product with the
    // slot.
    if constexpr (Traits::kDirectO) {
      load_k(info.block_end - 1, kv_head, info.batch);
    }
    load_q(info);
    if constexpr (!Traits::kDirectO) {
      load_k(info.block_end - 1, kv_head, info.batch);
    }
    load_pending_v();
#pragma unroll 1
    for (int block = info.block_end - 2; block >= info.block_begin; --block) {
      load_k(block, kv_head, info.batch);
      load_v(block + 1, kv_head, info.batch);
    }
    if constexpr (!Traits::kDirectO) {
      last_block = info.block_begin;
      last_head = kv_head;
      last_batch = info.batch;
      v_pending = true;
    } else {
      load_v(info.block_begin, kv_head, info.batch);
    }
  }

  __device__ __forceinline__ void wait_for_all_slots() const {
    Ring<kConfig.q_slots> slot = q;
#pragma unroll 1
    for (int i = 0; i < kConfig.q_slots; ++i) {
      shared.q_empty[slot.index].wait(slot.phase ^ 1);
      slot.advance();
    }
    device::compiler_fence();
  }
};

}  // namespace attn::sm90
