// A consumer warpgroup: 64 query rows of each tile, from Q·Kᵀ through the online softmax to P·V. The picture
// of one step, for block j, with the tensor cores' turn taken from and passed on to the other warpgroups:
//   [turn] S = Q·K(j)ᵀ, O += P·V(j+1) [pass] | S is there: mask | O is there: P = 2^(S·c − reference)
// and at a tile's end S belongs to the next tile already (when there is a second Q slot).
// Tested by every kernel test.
#pragma once

#include "cuda/device/mask.hpp"
#include "cuda/device/online_softmax.hpp"
#include "cuda/device/score.hpp"
#include "cuda/device/wgmma.hpp"
#include "cuda/sm90/epilogue.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct Consumer {
  using T = typename Traits::T;
  static constexpr KernelConfig kConfig = Traits::kConfig;
  static constexpr bool kClassic = kConfig.softmax == Softmax::kClassic;
  static constexpr bool kBand = Traits::kKey.mask == Mask::kBand;
  static constexpr bool kChanged = Traits::kKey.logits == Logits::kChanged;
  static constexpr bool kGrowing = Traits::kGrowing;
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
  // Where the row ends of a tile are made: with two warpgroups before the turn, so that O is stored as soon
  // as it is there; with three beside the last P·V, since the turn is waited for (d 64 full +1 %, d 128 −2
  // %).
  static constexpr bool kRowEndsLate = kConfig.warpgroups == 3;
  device::OnlineSoftmax<kConfig.softmax, Traits::kBFloat16, Traits::kCareful, kGrowing> softmax;
  Work work;
  bool k_there = false;  // the next K stage has been seen to be full
  std::uint32_t cleaned_phase = 0;
  int accumulate;  // 0 for a tile's first P·V
  int redos;       // kGrowing: of this warpgroup's warps in this tile, at every other block

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

  template <class Iterator>
  __device__ __forceinline__ static device::Descriptor words(Iterator const& descriptor) {
    return {descriptor.reg32_[0], descriptor.reg32_[1]};
  }

  // S = Q·Kᵀ of a slot and a stage, as descriptors a and b of 16 columns of head_dim each.
  template <class Q, class K, class S>
  __device__ __forceinline__ void issue_scores(Q const& q_tiles, K const& k_tiles, S& s) const {
    using namespace cute;
    const int k_stage = device::uniform(k.index);
    const int q_slot = kConfig.q_slots == 1 ? 0 : device::uniform(slot.index);
    CUTE_UNROLL
    for (int i = 0; i < Traits::kHeadDimQk / 16; ++i) {
      device::WgmmaShared<Traits::kBFloat16, Traits::kTileN>::multiply(
          words(q_tiles(0, make_coord(warpgroup, i, q_slot))), words(k_tiles(0, make_coord(0, i, k_stage))),
          s.data(), i > 0);
    }
    warpgroup_commit_batch();
  }

  // O += P·V of a stage, 16 keys at a time.
  template <class P, class V, class O>
  __device__ __forceinline__ void issue_output(P const& operand_p, V const& v_tiles, O& o) const {
    using namespace cute;
    const int v_stage = device::uniform(v.index);
    CUTE_UNROLL
    for (int i = 0; i < Traits::kTileN / 16; ++i) {
      const std::uint32_t p[4] = {operand_p(0, 0, i), operand_p(1, 0, i), operand_p(2, 0, i),
                                  operand_p(3, 0, i)};
      device::WgmmaRegisters<Traits::kBFloat16, Traits::kHeadDimV>::multiply(
          p, words(v_tiles(0, make_coord(0, i, v_stage))), o.data(), i > 0 ? 1 : accumulate);
    }
    warpgroup_commit_batch();
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
    accumulate = 0;
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

  // P·V is done, and its V stage may be filled again.
  template <class O>
  __device__ __forceinline__ void take_output(O& o) {
    cute::warpgroup_fence_operand(o);
    release(shared.v_empty[v.index]);
    v.advance();
  }

  // The first half of a step: its turn, and the first of its two products.
  template <class S, class P, class O, class Q, class K, class OperandP, class V>
  __device__ __forceinline__ void begin_step(int block, S& s, P& p, O& o, Q const& q_tiles, K const& k_tiles,
                                             OperandP const& operand_p, V const& v_tiles) {
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
      issue_output(operand_p, v_tiles, o);
      issue_scores(q_tiles, k_tiles, s);
      pass_turn();
    } else {
      issue_scores(q_tiles, k_tiles, s);
      shared.v_full[v.index].wait(v.phase);
    }
  }

  // The second half: the other product, and the softmax of block `block` between the waits for the two.
  // kMaximum: the block's maximum comes first.
  template <bool kMasked, bool kMaximum, class S, class P, class O, class Q, class K, class OperandP, class V>
  __device__ __forceinline__ void finish_step(int block, S& s, P& p, O& o, Q const& q_tiles, K const& k_tiles,
                                              OperandP const& operand_p, V const& v_tiles) {
    using namespace cute;
    auto scores = make_tensor(s.data(), device::rows_and_columns(s.layout()));
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));
    if constexpr (!kConfig.output_first) {
      warpgroup_arrive();  // again: a wait lies between, and without it ptxas adds one and says so (C7519)
      issue_output(operand_p, v_tiles, o);
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
    auto scores = make_tensor(s.data(), device::rows_and_columns(s.layout()));
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));

    // The first product of a tile, alone.
    auto first_scores = [&]() __attribute__((always_inline)) {
      skip_keys();
      wait_for_k();
      warpgroup_fence_operand(s);
      warpgroup_arrive();
      issue_scores(q_tiles, k_tiles, s);
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
        begin_tile();
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
        auto begin = [&]() __attribute__((always_inline)) {
          begin_step(block, s, p, o, q_tiles, k_tiles, operand_p, v_tiles);
        };
        // Steps down to block `end`, from kRedosToGrow redos on with the maximum first.
        auto plain_steps = [&](int end) __attribute__((always_inline)) {
          bool grown = false;
#pragma unroll 1
          for (; block >= end; --block) {
            begin();
            if (kGrowing && __any_sync(0xffffffffu, redos >= Traits::kRedosToGrow)) {
              grown = true;
              break;
            }
            finish_step<false, kClassic>(block, s, p, o, q_tiles, k_tiles, operand_p, v_tiles);
          }
          if constexpr (kGrowing) {
            if (grown) {
#pragma unroll 1
              while (true) {
                finish_step<false, true>(block, s, p, o, q_tiles, k_tiles, operand_p, v_tiles);
                if (--block < end) {
                  break;
                }
                begin();
              }
            }
          }
        };
        auto masked_steps = [&](int end) __attribute__((always_inline)) {
#pragma unroll 1
          for (; block >= end; --block) {
            begin();
            finish_step<true, kClassic>(block, s, p, o, q_tiles, k_tiles, operand_p, v_tiles);
          }
        };
        if constexpr (kChanged) {
          masked_steps(work.begin);
        } else if constexpr (kBand) {
          // Blocks cut by the right edge; plain ones; those cut by the left edge. A loop of its own for the
          // last costs no time; going back to the first costs registers.
          masked_steps(work.plain_end);
          plain_steps(work.plain_begin);
          masked_steps(work.begin);
        } else {
          plain_steps(0);
        }

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
        issue_output(operand_p, v_tiles, o);
        if constexpr (!Traits::kDirectO) {
          // Without a next tile this multiplies what lies in the stage, for nobody: cheaper than a branch
          // here.
          issue_scores(q_tiles, k_tiles, s);
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
