// A consumer warpgroup: 64 query rows of each tile, from Q·Kᵀ through the online softmax to P·V. The picture
// of one step, for block j, with the tensor cores' turn taken from and passed on to the other warpgroups:
//   [turn] S = Q·K(j)ᵀ, O += P·V(j+1) [pass] | S is there: mask | O is there: P = 2^(S·c − reference)
// and at a tile's end S belongs to the next tile already (when there is a second Q slot).
// Tested by every kernel test.
#pragma once

#include <climits>
#include <cute/algorithm/gemm.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cute/atom/copy_traits_sm75.hpp>

#include "cuda/device/mask.hpp"
#include "cuda/device/online_softmax.hpp"
#include "cuda/sm90/epilogue.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct Consumer {
  using T = typename Traits::T;
  using MmaS = typename Traits::MmaS;
  using MmaO = typename Traits::MmaO;
  static constexpr KernelConfig kConfig = Traits::kConfig;
  static constexpr bool kClassic = kConfig.softmax == Softmax::kClassic;
  using ScaleOut = cute::SM90::GMMA::ScaleOut;
  // Named barriers (cutlass::arch::NamedBarrier's user ids): [0, 3) turns, [3, 6) a warpgroup's own,
  // 6 all consumers.
  static constexpr int kTurnBarrier = 0;
  static constexpr int kWarpgroupBarrier = 3;
  static constexpr int kConsumerBarrier = 6;

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int warpgroup;  // 0 … warpgroups − 1
  int thread;     // within the warpgroup

  Ring<kConfig.q_slots> slot;
  Ring<kConfig.k_stages> k;
  Ring<kConfig.v_stages> v;
  device::OnlineSoftmax<kConfig.softmax, Traits::kBFloat16, Traits::kCareful> softmax;
  int num_unmasked;  // of the tile in work
  bool careful;
  int ends[2];          // keys [0, ends[r]) are visible to this thread's row r
  ScaleOut accumulate;  // Zero for a tile's first P·V

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
  // One arrival a warp: each warp knows of its own products only.
  __device__ __forceinline__ void release(EmptyBarrier& empty) const {
    if (thread % 32 == 0) {
      empty.arrive();
    }
  }

  template <class Mma, class A, class B, class C>
  __device__ __forceinline__ static void product(Mma& mma, A const& a, B const& b, C& c, ScaleOut first) {
    using namespace cute;
    mma.accumulate_ = first;
    CUTE_UNROLL
    for (int i = 0; i < decltype(size<2>(a))::value; ++i) {
      cute::gemm(mma, a(_, _, i), b(_, _, i), c);
      mma.accumulate_ = ScaleOut::One;
    }
    warpgroup_commit_batch();
  }

  // A negative scale is Q with its sign bits turned: this warpgroup's rows of the slot, in place.
  __device__ __forceinline__ void negate_q() {
    auto* base = reinterpret_cast<uint4*>(shared.q + slot.index * Traits::kTileM * Traits::kHeadDim);
    constexpr int kChunkWords = Traits::kTileM * 64 * 2 / 16;
    constexpr int kOwnWords = 64 * 64 * 2 / 16;
#pragma unroll 1
    for (int c = 0; c < Traits::kChunks; ++c) {
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

  // Waits for the slot and says what is in it.
  __device__ __forceinline__ SlotKind slot_arrived() {
    shared.q_full[slot.index].wait(slot.phase);
    device::compiler_fence();
    const auto kind = static_cast<SlotKind>(shared.info[slot.index].kind);
    if (kind == kTile && params.negate_q) {
      negate_q();
    }
    if (Traits::kCareful && kind == kPause) {
      shared.o_full[slot.index].arrive();
      shared.q_empty[slot.index].arrive();
    }
    return kind;
  }

  __device__ __forceinline__ static void sync_consumers() {
    cutlass::arch::NamedBarrier::sync(128 * kConfig.warpgroups, kConsumerBarrier);
  }

  // A careful tile: NaN and Inf are taken out of the V stage that comes next, block `block`, if rows exist
  // that do not see all of it, and the least key that had one is noted: rows that do see it are left to
  // exact_row. Each consumer thread looks at its share; no warpgroup multiplies before all have.
  __device__ __forceinline__ void clean_values(int block) {
    if (block < num_unmasked) {
      return;  // every row sees these: NaN and Inf are theirs
    }
    shared.v_full[v.index].wait(v.phase);
    constexpr std::uint32_t kExponent = Traits::kBFloat16 ? 0x7F80u : 0x7C00u;
    auto* words = reinterpret_cast<std::uint32_t*>(shared.v + v.index * Traits::kTileN * Traits::kHeadDim);
    int bad = INT_MAX;
#pragma unroll 1
    for (int i = warpgroup * 128 + thread; i < Traits::kTileN * Traits::kHeadDim / 2;
         i += 128 * kConfig.warpgroups) {
      const std::uint32_t word = words[i];
      std::uint32_t keep = 0xFFFFFFFFu;
      keep ^= (word & kExponent) == kExponent ? 0xFFFFu : 0u;
      keep ^= (word >> 16 & kExponent) == kExponent ? 0xFFFF0000u : 0u;
      if (keep != 0xFFFFFFFFu) {
        words[i] = word & keep;
        // 32 words make a key's 128 bytes of one chunk; the swizzle moves words within them only.
        bad = min(bad, block * Traits::kTileN + i / 32 % Traits::kTileN);
      }
    }
    if (bad != INT_MAX) {
      atomicMin(&shared.first_bad_key, bad);
    }
    cutlass::arch::fence_view_async_shared();
    sync_consumers();
  }

  __device__ __forceinline__ int row_in_tile() const {
    return warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
  }

  template <class Scores>
  __device__ __forceinline__ void mask(Scores& scores, int block) const {
    const int column = block * Traits::kTileN + 2 * (thread % 4);
    const int limits[2] = {ends[0] - column, ends[1] - column};
    device::mask_block(scores, limits);
  }

  // Returns the tile's number of blocks.
  __device__ __forceinline__ int begin_tile() {
    const TileInfo tile = shared.info[slot.index];
    const int row = tile.m_tile * Traits::kTileM + row_in_tile();
    ends[0] = device::key_end<Traits::kKey.mask>(params, row);
    ends[1] = device::key_end<Traits::kKey.mask>(params, row + 8);
    num_unmasked = tile.num_unmasked;
    careful = Traits::kCareful && tile.careful != 0;
    accumulate = ScaleOut::Zero;
    if (careful) {
      sync_consumers();  // the last careful tile's note has been read by all
      shared.first_bad_key = INT_MAX;
      sync_consumers();
    }
    return tile.num_blocks;
  }

  // Block `block` of the tile, and P·V of the block before it.
  template <bool kMasked, class S, class P, class O, class A, class K, class OperandP, class V>
  __device__ __forceinline__ void step(int block, S& s, P& p, O& o, A const& q, K const& k_tiles,
                                       OperandP const& operand_p, V const& v_tiles) {
    using namespace cute;
    MmaS mma_s;
    MmaO mma_o;
    auto scores = make_tensor(s.data(), device::rows_and_columns(s.layout()));
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));

    shared.k_full[k.index].wait(k.phase);
    if (Traits::kCareful && careful) {
      clean_values(block + 1);
    }
    if constexpr (!kConfig.overlap) {
      shared.v_full[v.index].wait(v.phase);
    }
    take_turn();
    warpgroup_fence_operand(s);
    warpgroup_fence_operand(o);
    warpgroup_fence_operand(p);
    warpgroup_arrive();
    if constexpr (kConfig.overlap) {
      product(mma_s, q, k_tiles(_, _, _, k.index), s, ScaleOut::Zero);
      shared.v_full[v.index].wait(v.phase);
      warpgroup_arrive();  // again: a wait lies between, and without it ptxas adds one and says so (C7519)
      product(mma_o, operand_p, v_tiles(_, _, _, v.index), o, accumulate);
      pass_turn();
      warpgroup_wait<1>();
    } else {
      product(mma_o, operand_p, v_tiles(_, _, _, v.index), o, accumulate);
      warpgroup_wait<0>();
      warpgroup_arrive();
      product(mma_s, q, k_tiles(_, _, _, k.index), s, ScaleOut::Zero);
      pass_turn();
      warpgroup_wait<0>();
    }
    warpgroup_fence_operand(s);
    accumulate = ScaleOut::One;
    release(shared.k_empty[k.index]);
    k.advance();
    if constexpr (kMasked) {
      mask(scores, block);
    }
    if constexpr (kClassic) {
      float rescale[2];
      float sums[2];
      softmax.raise_reference(scores, rescale);
      warpgroup_wait<0>();
      warpgroup_fence_operand(o);
      release(shared.v_empty[v.index]);
      softmax.exponentials(scores, p, sums);
      softmax.row_sum[0] += sums[0];
      softmax.row_sum[1] += sums[1];
      softmax.rescale_output(output, rescale);
    } else {
      warpgroup_wait<0>();
      warpgroup_fence_operand(o);
      release(shared.v_empty[v.index]);
      softmax.later_block(scores, p, output);
    }
    v.advance();
  }

  __device__ __forceinline__ void run() {
    using namespace cute;
    MmaS mma_s;
    MmaO mma_o;
    auto thread_s = mma_s.get_slice(thread);
    auto thread_o = mma_o.get_slice(thread);

    Tensor sQ_all = make_tensor(make_smem_ptr(shared.q), typename Traits::LayoutQ{});  // (M, d, slots)
    Tensor sQ = local_tile(sQ_all, Shape<_64, Int<Traits::kHeadDim>, Int<kConfig.q_slots>>{},
                           make_coord(warpgroup, _0{}, _0{}));                       // (64, d, slots)
    Tensor sK = make_tensor(make_smem_ptr(shared.k), typename Traits::LayoutK{});    // (N, d, stages)
    Tensor sVt = make_tensor(make_smem_ptr(shared.v), typename Traits::LayoutVt{});  // (d, N, stages)
    Tensor k_tiles = thread_s.partition_fragment_B(sK);   // (MMA, MMA_N, MMA_K, stages): descriptors
    Tensor v_tiles = thread_o.partition_fragment_B(sVt);  // (MMA, MMA_N, MMA_K, stages)

    Tensor s = partition_fragment_C(mma_s, Shape<_64, Int<Traits::kTileN>>{});    // ((2, 2, N/8), 1, 1)
    Tensor o = partition_fragment_C(mma_o, Shape<_64, Int<Traits::kHeadDim>>{});  // ((2, 2, d/8), 1, 1)
    Tensor p = make_tensor<std::uint32_t>(Shape<Int<Traits::kTileN / 4>>{});      // packed pairs of S's order
    Tensor operand_p = make_tensor(recast<T>(p).data(), device::as_operand_a(s.layout()));
    auto scores = make_tensor(s.data(), device::rows_and_columns(s.layout()));

    // Q as the A operand: descriptors of the slot, or registers filled from it.
    [[maybe_unused]] Tensor q_registers =
        make_tensor<T>(Shape<Shape<_2, _2, _2>, _1, Int<Traits::kHeadDim / 16>>{});
    auto fill_q = [&]() __attribute__((always_inline)) {
      if constexpr (kConfig.q_in_registers) {
        auto copy_q = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, T>{}, mma_s);
        auto thread_q = copy_q.get_slice(thread);
        copy(copy_q, thread_q.partition_S(sQ(_, _, slot.index)), thread_q.retile_D(q_registers));
      }
    };
    auto operand_q = [&]() __attribute__((always_inline)) {
      if constexpr (kConfig.q_in_registers) {
        return make_tensor(q_registers.data(), q_registers.layout());
      } else {
        return thread_s.partition_fragment_A(sQ)(_, _, _, slot.index);  // (MMA, 1, MMA_K)
      }
    };
    // The first product of a tile, alone.
    auto first_scores = [&]() __attribute__((always_inline)) {
      fill_q();
      shared.k_full[k.index].wait(k.phase);
      warpgroup_fence_operand(s);
      warpgroup_arrive();
      product(mma_s, operand_q(), k_tiles(_, _, _, k.index), s, ScaleOut::Zero);
      warpgroup_wait<0>();
      warpgroup_fence_operand(s);
      release(shared.k_empty[k.index]);
      k.advance();
    };

    softmax.scale = params.scale_log2;
    if (kConfig.ping_pong && warpgroup == 0) {  // the first turn is nobody's to pass
      cutlass::arch::NamedBarrier::arrive(256, static_cast<std::uint32_t>(kTurnBarrier));
    }
    SlotKind kind = slot_arrived();
    bool scores_there = false;  // the tile's first product was made beside the last one of the tile before
#pragma unroll 1
    while (kind != kEnd) {
      if (Traits::kCareful && kind == kPause) {
        slot.advance();
        kind = slot_arrived();
        continue;
      }
      if (!scores_there) {
        first_scores();
      }
      int block = begin_tile() - 1;
      if (block >= num_unmasked) {
        mask(scores, block);
      }
      softmax.template first_block<kConfig.short_first>(scores, p);
      --block;
      if constexpr (Traits::kKey.mask != Mask::kFull) {
#pragma unroll 1
        for (; block >= num_unmasked; --block) {
          step<true>(block, s, p, o, operand_q(), k_tiles, operand_p, v_tiles);
        }
      }
#pragma unroll 1
      for (; block >= 0; --block) {
        step<false>(block, s, p, o, operand_q(), k_tiles, operand_p, v_tiles);
      }

      const int done_slot = slot.index;
      if (Traits::kCareful && careful) {
        clean_values(0);
      }
      if constexpr (Traits::kFlat) {
        slot.advance();
        kind = slot_arrived();
        scores_there = kind == kTile;
        if (scores_there) {
          fill_q();
          shared.k_full[k.index].wait(k.phase);
        }
      }
      take_turn();
      warpgroup_fence_operand(s);
      warpgroup_fence_operand(o);
      warpgroup_fence_operand(p);
      warpgroup_arrive();
      if constexpr (Traits::kFlat) {
        // Without a next tile this multiplies what lies in the stage, for nobody: cheaper than a branch here.
        product(mma_s, operand_q(), k_tiles(_, _, _, k.index), s, ScaleOut::Zero);
      }
      shared.v_full[v.index].wait(v.phase);
      warpgroup_arrive();
      product(mma_o, operand_p, v_tiles(_, _, _, v.index), o, accumulate);
      pass_turn();
      warpgroup_wait<0>();
      warpgroup_fence_operand(s);
      warpgroup_fence_operand(o);
      release(shared.v_empty[v.index]);
      v.advance();
      if (Traits::kFlat && scores_there) {
        release(shared.k_empty[k.index]);
        k.advance();
      }

      Epilogue<Traits> epilogue{params, shared, warpgroup, device::opaque(thread)};
      epilogue.finish(done_slot, o, softmax, ends, careful);

      if constexpr (!Traits::kFlat) {
        slot.advance();
        kind = slot_arrived();
      }
    }
  }
};

}  // namespace attn::sm90
