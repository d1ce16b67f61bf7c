// What a consumer warpgroup does around its products: it takes slots and turns, hands stages back, and treats
// what is rare or cut by an edge: masks, careful tiles, blocks and tiles of which it has no rows.
// Tested by every kernel test.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/device/ptx.hpp"
#include "cuda/device/score.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct TileWork {
  static constexpr KernelConfig kConfig = Traits::kConfig;
  static constexpr bool kBand = Traits::kKey.mask == Mask::kBand;
  static constexpr bool kChanged = Traits::kKey.logits == Logits::kChanged;
  // Named barriers (cutlass::arch::NamedBarrier's user ids): [0, 3) turns, [3, 6) a warpgroup's own,
  // 6 all consumers.
  static constexpr int kTurnBarrier = 0;
  static constexpr int kWarpgroupBarrier = 3;
  static constexpr int kConsumerBarrier = 6;
  static constexpr int kFirstBarrier =
      static_cast<int>(cutlass::arch::ReservedNamedBarriers::FirstUserBarrier);

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int warpgroup;  // 0 … warpgroups − 1
  int thread;     // within the warpgroup

  // What the producer says of a tile (TileInfo), the same in all threads and for the compiler.
  struct Work {
    int kind;
    bool careful;
    int begin;  // blocks [begin, last] of which this warpgroup sees something
    int last;
    int plain_begin;  // blocks [plain_begin, plain_end) are neither masked nor changed
    int plain_end;
    int skipped;   // blocks behind `last`
    bool no_rows;  // all of this warpgroup's rows lie beyond the last query
  };

  Ring<kConfig.q_slots> slot;
  Ring<kConfig.k_stages> k;
  Ring<kConfig.v_stages> v;
  Work work;
  bool k_there = false;  // the next K stage has been seen to be full
  std::uint32_t cleaned_phase = 0;

  __device__ __forceinline__ void take_turn() const {
    if constexpr (kConfig.ping_pong) {
      cutlass::arch::NamedBarrier::sync(256, static_cast<std::uint32_t>(kTurnBarrier + warpgroup));
    }
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kConfig.ping_pong) {
      const int next = warpgroup + 1 == kConfig.warpgroups ? 0 : warpgroup + 1;
      cutlass::arch::NamedBarrier::arrive(256, static_cast<std::uint32_t>(kTurnBarrier + next));
    }
  }
  [[nodiscard]] __device__ __forceinline__ int info_slot() const { return Traits::info_slot(slot); }
  // The tile's products with Q are done (Traits::kDirectO).
  __device__ __forceinline__ void release_q() const { shared.q_empty[slot.index].arrive(); }
  // One arrival a warp: each warp knows of its own products only.
  __device__ __forceinline__ void release(EmptyBarrier& empty) const {
    if (thread % 32 == 0) {
      empty.arrive();
    }
  }

  // A negative scale is Q with its sign bits turned: this warpgroup's rows of the slot, in place.
  __device__ __forceinline__ void negate_q() {
    auto* base = reinterpret_cast<uint4*>(shared.q + slot.index * Traits::kTileM * Traits::kStoredQk);
    constexpr int kChunkWords = Traits::kTileM * 64 * 2 / 16;
    constexpr int kOwnWords = 64 * 64 * 2 / 16;
#pragma unroll 1
    for (int c = 0; c < Traits::kStoredQk / kBoxColumns; ++c) {
#pragma unroll 1
      for (int i = thread; i < kOwnWords; i += 128) {
        uint4& word = base[c * kChunkWords + warpgroup * kOwnWords + i];
        word.x ^= 0x80008000u;
        word.y ^= 0x80008000u;
        word.z ^= 0x80008000u;
        word.w ^= 0x80008000u;
      }
    }
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(kWarpgroupBarrier + warpgroup));
  }

  // What the producer says of the tile in the slot, which has arrived. Few reads: this stands between two
  // tiles' products.
  [[nodiscard]] __device__ __forceinline__ Work read_slot() const {
    const TileInfo& info = shared.info[info_slot()];
    const int4 head = *reinterpret_cast<const int4*>(&info.kind);
    const int plain_end = info.unmasked_end;
    Work read;
    read.kind = device::uniform(head.x);
    read.begin = device::uniform(head.y);
    read.last = device::uniform(head.z) - 1;
    read.plain_begin = kChanged ? read.begin : device::uniform(head.w);
    read.plain_end = kChanged ? read.begin : device::uniform(plain_end);
    read.skipped = 0;
    read.careful = false;
    if constexpr (kBand) {
      const int2 more = *reinterpret_cast<const int2*>(&info.careful);
      read.careful = device::uniform(more.x) != 0;
      const int skipped = device::uniform(more.y >> 8 * warpgroup & 0xff);
      read.no_rows = skipped == kNoRows;
      read.skipped = read.no_rows ? 0 : skipped;
      read.last -= read.skipped;
    } else {
      read.no_rows = device::uniform(static_cast<int>(info.skipped) >> 8 * warpgroup & 0xff) != 0;
    }
    return read;
  }

  // Waits for the slot and makes its tile the one in work.
  __device__ __forceinline__ void take_slot() {
    shared.q_full[slot.index].wait(slot.phase);
    device::compiler_fence();
    work = read_slot();
    if (__builtin_expect(work.kind == kTile && params.negate_q, 0)) {
      negate_q();
    }
    if (Traits::kCareful && work.kind == kPause) {
      shared.o_full[info_slot()].arrive();
      shared.q_empty[slot.index].arrive();
    }
  }

  // Before the exponentials, so that the wait after them need not ask. In band kernels it gained nothing.
  __device__ __forceinline__ void look_for_k() {
    if constexpr (!kBand) {
      k_there = shared.k_full[k.index].test_wait(k.phase);
    }
  }
  __device__ __forceinline__ void wait_for_k() {
    if (kBand || !k_there) {
      shared.k_full[k.index].wait(k.phase);
    }
    k_there = false;
  }

  __device__ __forceinline__ static void sync_consumers() {
    cutlass::arch::NamedBarrier::sync(128 * kConfig.warpgroups, kConsumerBarrier);
  }

  // A careful tile: NaN and Inf are taken out of the V stage that comes next, block `block`, if rows exist
  // that do not see all of it, and the keys that had one are noted: rows that do see one are left to
  // exact_row. Each consumer thread looks at its share; no warpgroup multiplies before all have.
  __device__ __forceinline__ void clean_values(int block) {
    const TileInfo& tile = shared.info[info_slot()];
    if (block >= tile.unmasked_begin && block < tile.unmasked_end) {
      return;  // every row sees these: NaN and Inf are theirs
    }
    const int first_bit = masked_ordinal(tile, block) * Traits::kTileN;
    shared.v_full[v.index].wait(v.phase);
    constexpr std::uint32_t kExponent = Traits::kBFloat16 ? 0x7F80u : 0x7C00u;
    auto* words = reinterpret_cast<std::uint32_t*>(shared.v + v.index * Traits::kTileN * Traits::kStoredV);
#pragma unroll 1
    for (int i = warpgroup * 128 + thread; i < Traits::kTileN * Traits::kStoredV / 2;
         i += 128 * kConfig.warpgroups) {
      const std::uint32_t word = words[i];
      std::uint32_t keep = 0xFFFFFFFFu;
      keep ^= (word & kExponent) == kExponent ? 0xFFFFu : 0u;
      keep ^= (word >> 16 & kExponent) == kExponent ? 0xFFFF0000u : 0u;
      if (keep != 0xFFFFFFFFu) {
        words[i] = word & keep;
        // 32 words make a key's 128 bytes of one box; the swizzle moves words within them only.
        const int bit = first_bit + i / 32 % Traits::kTileN;
        atomicOr(&shared.bad_keys[bit / 32], 1u << bit % 32);
      }
    }
    cutlass::arch::fence_view_async_shared();
    shared.cleaned.arrive();  // no named barrier: warpgroups come here from different places
    shared.cleaned.wait(cleaned_phase);
    cleaned_phase ^= 1;
  }

  // Changes of the logits (device/score.hpp) and what is masked (device/mask.hpp) of one block. Returns the
  // number of its columns up to the last that some row of the warp sees.
  template <class Scores>
  __device__ __forceinline__ int mask(Scores& scores, int block) const {
    constexpr Mask kMask = Traits::kKey.mask;
    const TileInfo& tile = shared.info[info_slot()];
    const int thread = device::opaque(this->thread);  // recomputed here, not kept in registers
    const int warp_row = device::uniform(tile.m_tile * Traits::kTileM + warpgroup * 64 + thread / 32 * 16);
    const int row = warp_row + thread % 32 / 4;
    const int begin = block * Traits::kTileN;
    const int column = begin + 2 * (thread % 4);
    const int begins[2] = {device::key_begin<kMask>(params, row), device::key_begin<kMask>(params, row + 8)};
    const int ends[2] = {device::key_end<kMask>(params, row), device::key_end<kMask>(params, row + 8)};
    if constexpr (kChanged) {
      const device::RowBias bias[2] = {{params, tile.batch, tile.head, begins[0], ends[0]},
                                       {params, tile.batch, tile.head, begins[1], ends[1]}};
      device::change_logits(scores, params, bias, column);
      if (block >= tile.unmasked_begin && block < tile.unmasked_end) {
        return Traits::kTileN;
      }
    }
    const int right[2] = {ends[0] - column, ends[1] - column};
    device::mask_right(scores, right, device::key_end<kMask>(params, warp_row) - begin);
    if constexpr (kBand) {
      if (params.band_lower + params.seqlen_q > 0) {  // else no row has a left bound
        const int left[2] = {begins[0] - column, begins[1] - column};
        device::mask_left(scores, left, device::key_begin<kMask>(params, warp_row + 15) - begin);
      }
    }
    return device::key_end<kMask>(params, warp_row + 15) - begin;
  }

  // The blocks that only later warpgroups see (the rows of a tile see more and more) are none of this one's:
  // their K stages are handed back at once, their V stages and turns in begin_tile.
  __device__ __forceinline__ void skip_keys() {
    if constexpr (kBand) {
#pragma unroll 1
      for (int i = 0; i < work.skipped; ++i) {
        wait_for_k();
        release(shared.k_empty[k.index]);
        k.advance();
      }
    }
  }

  __device__ __forceinline__ void begin_tile() {
    if (Traits::kCareful && work.careful) {
      sync_consumers();  // the last careful tile's notes have been read by all
      if (warpgroup == 0) {
        for (int i = thread; i < Traits::kBadKeyWords; i += 128) {
          shared.bad_keys[i] = 0;
        }
      }
      sync_consumers();
    }
    if constexpr (kBand) {
#pragma unroll 1
      for (int i = work.skipped; i > 0; --i) {
        if (work.careful) {
          clean_values(work.last + i);  // all warpgroups together
        } else {
          shared.v_full[v.index].wait(v.phase);
        }
        release(shared.v_empty[v.index]);
        v.advance();
        take_turn();
        pass_turn();
      }
    }
    if (Traits::kDirectO && work.last == work.begin) {
      release_q();
    }
  }

  // A warpgroup without rows lets the tile's further blocks pass: its turns, and the stages. What it makes of
  // the first block is for nobody.
  __device__ __forceinline__ void pass_blocks(int& block) {
#pragma unroll 1
    for (; block >= work.begin; --block) {
      if (Traits::kCareful && work.careful) {
        clean_values(block + 1);
      }
      take_turn();
      pass_turn();
      wait_for_k();
      release(shared.k_empty[k.index]);
      k.advance();
      shared.v_full[v.index].wait(v.phase);
      release(shared.v_empty[v.index]);
      v.advance();
    }
    if (Traits::kDirectO) {
      release_q();
    }
  }
};

}  // namespace attn::sm90
