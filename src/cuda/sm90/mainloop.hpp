// A consumer warpgroup: 64 query rows of each tile, from Q·Kᵀ through the online softmax to P·V. The picture
// of one step, for block j, with the tensor cores' turn taken from and passed on to the other warpgroups:
//   [turn] S = Q·K(j)ᵀ, O += P·V(j+1) [pass] | S is there: mask | O is there: P = 2^(S·c − reference)
// and at a tile's end S belongs to the next tile already (when there is a second Q slot).
// Tested by every kernel test.
#pragma once

#include "cuda/device/online_softmax.hpp"
#include "cuda/device/wgmma.hpp"
#include "cuda/sm90/epilogue.hpp"
#include "cuda/sm90/tile_work.hpp"

namespace attn::sm90 {

template <class Traits>
struct Consumer : TileWork<Traits> {
  using Base = TileWork<Traits>;
  using T = typename Traits::T;
  using Base::kBand, Base::kChanged, Base::kFirstBarrier, Base::kTurnBarrier, Base::kWarpgroupBarrier;
  using Base::params, Base::shared, Base::warpgroup, Base::thread;
  using Base::release, Base::release_q, Base::clean_values, Base::mask, Base::skip_keys, Base::pass_blocks;
  using Base::slot, Base::k, Base::v, Base::work;
  using Base::take_turn, Base::pass_turn, Base::take_slot, Base::wait_for_k, Base::look_for_k;
  static constexpr KernelConfig kConfig = Traits::kConfig;
  static constexpr bool kClassic = kConfig.softmax == Softmax::kClassic;
  static constexpr bool kGrowing = Traits::kGrowing;
  // Where the row ends of a tile are made: with two warpgroups before the turn, so that O is stored as soon
  // as it is there; with three beside the last P·V, since the turn is waited for (d 64 full +1 %, d 128 −2
  // %).
  static constexpr bool kRowEndsLate = kConfig.warpgroups == 3;
  device::OnlineSoftmax<kConfig.softmax, Traits::kBFloat16, Traits::kCareful, kGrowing> softmax;
  int accumulate;  // 0 for a tile's first P·V
  int redos;       // kGrowing: of this warpgroup's warps in this tile, at every other block

  template <class Iterator>
  __device__ __forceinline__ static device::Descriptor words(Iterator const& descriptor) {
    return {descriptor.reg32_[0], descriptor.reg32_[1]};
  }

  // What the products read: descriptors of Q, K and V in shared memory, and P as operand A.
  template <class Q, class K, class P, class V>
  struct Operands {
    Q q;
    K k;
    P p;
    V v;
  };

  // S = Q·Kᵀ of a slot and a stage, as descriptors a and b of 16 columns of head_dim each.
  template <class Operands, class S>
  __device__ __forceinline__ void issue_scores(Operands const& operands, S& s) const {
    using namespace cute;
    const int k_stage = device::uniform(k.index);
    const int q_slot = kConfig.q_slots == 1 ? 0 : device::uniform(slot.index);
    CUTE_UNROLL
    for (int i = 0; i < Traits::kHeadDimQk / 16; ++i) {
      device::WgmmaShared<Traits::kBFloat16, Traits::kTileN>::multiply(
          words(operands.q(0, make_coord(warpgroup, i, q_slot))),
          words(operands.k(0, make_coord(0, i, k_stage))), s.data(), i > 0);
    }
    warpgroup_commit_batch();
  }

  // O += P·V of a stage, 16 keys at a time.
  template <class Operands, class O>
  __device__ __forceinline__ void issue_output(Operands const& operands, O& o) const {
    using namespace cute;
    const int v_stage = device::uniform(v.index);
    CUTE_UNROLL
    for (int i = 0; i < Traits::kTileN / 16; ++i) {
      const std::uint32_t p[4] = {operands.p(0, 0, i), operands.p(1, 0, i), operands.p(2, 0, i),
                                  operands.p(3, 0, i)};
      device::WgmmaRegisters<Traits::kBFloat16, Traits::kHeadDimV>::multiply(
          p, words(operands.v(0, make_coord(0, i, v_stage))), o.data(), i > 0 ? 1 : accumulate);
    }
    warpgroup_commit_batch();
  }

  // P·V is done, and its V stage may be filled again.
  template <class O>
  __device__ __forceinline__ void take_output(O& o) {
    cute::warpgroup_fence_operand(o);
    release(shared.v_empty[v.index]);
    v.advance();
  }

  // The first half of a step: its turn, and the first of its two products.
  template <class S, class P, class O, class Operands>
  __device__ __forceinline__ void begin_step(int block, S& s, P& p, O& o, Operands const& operands) {
    using namespace cute;
    wait_for_k();
    if (Traits::kCareful && work.careful) {
      clean_values(block + 1);
    }
    if constexpr (kConfig.output_first) {
      shared.v_full[v.index].wait(v.phase);
    }
    take_turn();
    if constexpr (kGrowing) {
      // What was counted before this turn; a warp that is ahead counts at the other place meanwhile. Used
      // once a product is issued.
      redos = *static_cast<volatile std::int32_t*>(&shared.redos[warpgroup][(block + 1) % 2]);
    }
    warpgroup_fence_operand(s);
    warpgroup_fence_operand(o);
    warpgroup_fence_operand(p);
    warpgroup_arrive();
    if constexpr (kConfig.output_first) {
      issue_output(operands, o);
      issue_scores(operands, s);
      pass_turn();
    } else {
      issue_scores(operands, s);
      shared.v_full[v.index].wait(v.phase);
    }
  }

  // The second half: the other product, and the softmax of block `block` between the waits for the two.
  // kMaximum: the block's maximum comes first.
  template <bool kMasked, bool kMaximum, class S, class P, class O, class Operands>
  __device__ __forceinline__ void finish_step(int block, S& s, P& p, O& o, Operands const& operands) {
    using namespace cute;
    auto scores = make_tensor(s.data(), device::rows_and_columns(s.layout()));
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));
    if constexpr (!kConfig.output_first) {
      warpgroup_arrive();  // again: a wait lies between, and without it ptxas adds one and says so (C7519)
      issue_output(operands, o);
      pass_turn();
    }
    warpgroup_wait<1>();
    if constexpr (kConfig.output_first) {
      take_output(o);
      warpgroup_wait<0>();
    }
    warpgroup_fence_operand(s);
    accumulate = 1;
    release(shared.k_empty[k.index]);
    k.advance();
    if (Traits::kDirectO && block == work.begin) {
      release_q();
    }
    int visible = Traits::kTileN;
    if constexpr (kMasked) {
      visible = mask(scores, block);
    }
    float rescale[2];
    if constexpr (kMaximum) {
      softmax.raise_references(scores, {}, rescale);
    }
    if constexpr (kMaximum && !kClassic) {  // plain blocks only
      softmax.weigh(scores);
    }
    // No branch stands around this wait: the compiler moves some of the exponentials ahead of it, where
    // nothing else would run.
    if constexpr (!kConfig.output_first) {
      warpgroup_wait<0>();
      take_output(o);
    }
    look_for_k();
    if constexpr (kClassic) {
      float sums[2];
      softmax.template exponentials<kMasked>(scores, p, sums, visible);
      softmax.row_sum[0] += sums[0];
      softmax.row_sum[1] += sums[1];
      softmax.rescale_output(output, rescale);
    } else if constexpr (kMaximum) {
      softmax.rescale_output(output, rescale);
      softmax.pack(scores, p);
    } else {
      softmax.template later_block<kMasked>(scores, p, output, visible, [&](bool fired) {
        if (kGrowing && __any_sync(0xffffffffu, fired) && thread % 32 == 0) {
          atomicAdd(&shared.redos[warpgroup][block % 2], 1);
        }
      });
    }
  }

  // Steps down to block `end`, all masked.
  template <class S, class P, class O, class Operands>
  __device__ __forceinline__ void masked_steps(int& block, int end, S& s, P& p, O& o,
                                               Operands const& operands) {
#pragma unroll 1
    for (; block >= end; --block) {
      begin_step(block, s, p, o, operands);
      finish_step<true, kClassic>(block, s, p, o, operands);
    }
  }

  // Steps down to block `end`, none masked; from kRedosToGrow redos on with the maximum first.
  template <class S, class P, class O, class Operands>
  __device__ __forceinline__ void plain_steps(int& block, int end, S& s, P& p, O& o,
                                              Operands const& operands) {
    bool grown = false;
#pragma unroll 1
    for (; block >= end; --block) {
      begin_step(block, s, p, o, operands);
      if (kGrowing && __any_sync(0xffffffffu, redos >= Traits::kRedosToGrow)) {
        grown = true;
        break;
      }
      finish_step<false, kClassic>(block, s, p, o, operands);
    }
    if constexpr (kGrowing) {
      if (grown) {
#pragma unroll 1
        while (true) {
          finish_step<false, true>(block, s, p, o, operands);
          if (--block < end) {
            break;
          }
          begin_step(block, s, p, o, operands);
        }
      }
    }
  }

  // A tile's blocks after its first, from `block` down to work.begin.
  template <class S, class P, class O, class Operands>
  __device__ __forceinline__ void later_blocks(int& block, S& s, P& p, O& o, Operands const& operands) {
    if constexpr (kChanged) {
      masked_steps(block, work.begin, s, p, o, operands);
    } else if constexpr (kBand) {
      // Blocks cut by the right edge; plain ones; those cut by the left edge. A loop of its own for the last
      // costs no time; going back to the first costs registers.
      masked_steps(block, work.plain_end, s, p, o, operands);
      plain_steps(block, work.plain_begin, s, p, o, operands);
      masked_steps(block, work.begin, s, p, o, operands);
    } else {
      plain_steps(block, 0, s, p, o, operands);
    }
  }

  // To the next tile, the first product of which may be there.
  template <class S>
  __device__ __forceinline__ void end_tile(S& s, bool scores_there) {
    if constexpr (Traits::kDirectO) {  // Q is on its way meanwhile
      slot.advance();
      take_slot();
    } else {
      cute::warpgroup_wait<0>();
      cute::warpgroup_fence_operand(s);
      if (scores_there) {
        release(shared.k_empty[k.index]);
        k.advance();
      }
    }
  }

  __device__ __forceinline__ void run() {
    using namespace cute;
    using DescriptorK = SM90::GMMA::smem_desc<Major::K>;
    using DescriptorMn = SM90::GMMA::smem_desc<Major::MN>;
    Tensor sQ = make_tensor(make_smem_ptr(shared.q), typename Traits::LayoutQ{});    // (M, d_qk, slots)
    Tensor sK = make_tensor(make_smem_ptr(shared.k), typename Traits::LayoutK{});    // (N, d_qk, stages)
    Tensor sVt = make_tensor(make_smem_ptr(shared.v), typename Traits::LayoutVt{});  // (d_v, N, stages)
    // Descriptors of what one wgmma reads: (1, (warpgroups, d_qk/16, slots)), (1, (1, d_qk/16, stages)) and
    // (1, (1, N/16, stages)). V's are of all stored columns; an instruction reads the first head_dim_v of
    // them.
    auto q_tiles = make_tensor<DescriptorK>(zipped_divide(sQ, Shape<_64, _16>{}));
    auto k_tiles = make_tensor<DescriptorK>(zipped_divide(sK, Shape<Int<Traits::kTileN>, _16>{}));
    auto v_tiles = make_tensor<DescriptorMn>(zipped_divide(sVt, Shape<Int<Traits::kStoredV>, _16>{}));

    Tensor s = make_tensor<float>(Shape<Shape<_2, _2, Int<Traits::kTileN / 8>>, _1, _1>{});
    Tensor o = make_tensor<float>(Shape<Shape<_2, _2, Int<Traits::kHeadDimV / 8>>, _1, _1>{});
    Tensor p = make_tensor<std::uint32_t>(Shape<Int<Traits::kTileN / 4>>{});  // packed pairs of S's order
    Tensor operand_p =
        recast<std::uint32_t>(make_tensor(recast<T>(p).data(), device::as_operand_a(s.layout())));
    const Operands<decltype(q_tiles), decltype(k_tiles), decltype(operand_p), decltype(v_tiles)> operands{
        q_tiles, k_tiles, operand_p, v_tiles};
    auto scores = make_tensor(s.data(), device::rows_and_columns(s.layout()));
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));

    // The first product of a tile, alone.
    auto first_scores = [&]() __attribute__((always_inline)) {
      skip_keys();
      wait_for_k();
      warpgroup_fence_operand(s);
      warpgroup_arrive();
      issue_scores(operands, s);
      warpgroup_wait<0>();
      warpgroup_fence_operand(s);
      release(shared.k_empty[k.index]);
      k.advance();
    };

    softmax.scale = kChanged ? 1.0f : params.scale_log2;
    if (kConfig.ping_pong && warpgroup == 0) {  // the first turn is nobody's to pass
      cutlass::arch::NamedBarrier::arrive(256, static_cast<std::uint32_t>(kTurnBarrier));
    }
    take_slot();
    bool scores_there = false;  // the tile's first product was made beside the last one of the tile before
#pragma unroll 1
    while (true) {
#pragma unroll 1
      while (Traits::kCareful && work.kind == kPause) {
        slot.advance();
        take_slot();
      }
      if (work.kind == kEnd) {
        break;
      }
      if (!scores_there) {
        first_scores();
      }
      // Tile after tile; what is rare stands behind this loop, since jumps over much code cost time.
      bool judge;
      bool careful;
      typename Epilogue<Traits>::NotFinite not_finite;
      auto done = slot;
      typename Epilogue<Traits>::Sums sums;
#pragma unroll 1
      while (true) {
        accumulate = 0;
        this->begin_tile();
        int block = work.last;
        int visible = Traits::kTileN;
        if (block < work.plain_begin || block >= work.plain_end) {
          visible = mask(scores, block);
        }
        look_for_k();
        softmax.template first_block<kConfig.short_first, kBand>(scores, p, visible);
        --block;
        if (work.no_rows && block >= work.begin) {
          pass_blocks(block);
        }
        later_blocks(block, s, p, o, operands);

        const Epilogue<Traits> epilogue{params, shared, warpgroup, device::opaque(thread)};
        epilogue.begin_rows(softmax, sums);
        done = slot;
        careful = work.careful;
        if (Traits::kCareful && careful) {
          clean_values(block + 1);
        }
        if constexpr (!Traits::kDirectO) {
          // The next tile's first product goes to the tensor cores with this tile's last one, which comes
          // first: the epilogue waits for that alone.
          slot.advance();
          take_slot();
          scores_there = work.kind == kTile;
          if (scores_there) {
            skip_keys();
            wait_for_k();
          }
        }
        shared.v_full[v.index].wait(v.phase);
        if constexpr (!kRowEndsLate) {
          epilogue.finish_rows(done, softmax, sums);
        }
        take_turn();
        warpgroup_fence_operand(s);
        warpgroup_fence_operand(o);
        warpgroup_fence_operand(p);
        warpgroup_arrive();
        issue_output(operands, o);
        if constexpr (!Traits::kDirectO) {
          // Without a next tile this multiplies what lies in the stage, for nobody: cheaper than a branch
          // here.
          issue_scores(operands, s);
        }
        pass_turn();
        if (kGrowing && thread == 0) {  // all have looked before they took the turn
          shared.redos[warpgroup][0] = shared.redos[warpgroup][1] = 0;
        }
        if constexpr (kRowEndsLate) {
          epilogue.finish_rows(done, softmax, sums);
        }
        warpgroup_wait<Traits::kDirectO ? 0 : 1>();
        take_output(o);
        judge = epilogue.store(done, output, softmax, sums, careful, not_finite,
                               kFirstBarrier + kWarpgroupBarrier + warpgroup);
        if (judge) {
          break;
        }
        epilogue.hand_on(done, sums);
        end_tile(s, scores_there);
        if (Traits::kDirectO || !scores_there) {
          break;
        }
      }
      if (judge) {
        const Epilogue<Traits> epilogue{params, shared, warpgroup, device::opaque(thread)};
        epilogue.judge(done, output, softmax, sums, not_finite, careful);
        epilogue.hand_on(done, sums);
        end_tile(s, scores_there);
      }
    }
    Epilogue<Traits>::leave(thread);
  }
};

}  // namespace attn::sm90
