// The end of a tile for one warpgroup: rows are divided by their sums, LSE goes to global memory, O goes
// through the tile's own Q slot to the store warp. Rows that are not finite (or lost range) are suspects:
// where masked keys exist the tile is done again carefully, and what is then still suspect is left to
// exact_row. So masked NaN and Inf leave no trace, not a bit, and V may have any magnitude. Tested by
// tests/kernels.
#pragma once

#include <climits>
#include <cute/arch/copy_sm90.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cute/atom/copy_traits_sm90.hpp>

#include "cuda/device/exact_row.hpp"
#include "cuda/device/online_softmax.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct Epilogue {
  using T = typename Traits::T;
  static constexpr int kHeadDim = Traits::kHeadDim;

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int warpgroup;
  int thread;

  __device__ __forceinline__ void write_lse(const TileInfo& tile, int row, float lse) const {
    if (params.lse != nullptr && row < params.seqlen_q) {
      params.lse[tile.batch * params.lse_stride_batch + tile.head * params.lse_stride_heads +
                 row * params.lse_stride_seqlen] = lse;
    }
  }

  template <class O, class OnlineSoftmax>
  __device__ __forceinline__ void finish(int slot, O& o, OnlineSoftmax& softmax, const int (&ends)[2],
                                         bool careful) const {
    using namespace cute;
    const TileInfo tile = shared.info[slot];  // the slot is this tile's until O has left it
    const int first_bad_key = careful ? shared.first_bad_key : INT_MAX;
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));
    const int lane = thread % 32;
    const int first_row = tile.m_tile * Traits::kTileM + warpgroup * 64 + thread / 32 * 16;  // of the warp
    unsigned suspects[2];  // lanes whose row half r must be redone
    float inverse[2];
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + lane / 4 + 8 * r;
      const float sum = device::quad_sum(softmax.row_sum[r]);
      float magnitude = 0.0f;  // NaN or Inf if any of O is
      CUTE_UNROLL
      for (int n = 0; n < kHeadDim / 8; ++n) {
        magnitude += fabsf(output(r, make_coord(0, n))) + fabsf(output(r, make_coord(1, n)));
      }
      bool suspect = !(magnitude < INFINITY) || !(sum < INFINITY);
      suspect |= sum == 0.0f && ends[r] > 0;  // logits of −inf, or below every reference
      suspect |= ends[r] > first_bad_key;     // sees a NaN or Inf that clean_values took out
      if constexpr (Traits::kConfig.softmax == Softmax::kSpeculative) {
        suspect |= softmax.wide_margin[r] & (device::quad_sum(magnitude) < device::kWideMarginFloor);
      }
      suspects[r] = __ballot_sync(0xffffffffu, suspect && row < params.seqlen_q);
      inverse[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
      if (lane % 4 == 0) {
        const float lse = sum == 0.0f ? -INFINITY : (softmax.reference[r] + __log2f(sum)) * 0.69314718f;
        write_lse(tile, row, lse);
      }
    }

    Tensor sO_all = make_tensor(make_smem_ptr(shared.q), typename Traits::LayoutQ{});
    Tensor sO = local_tile(sO_all, Shape<_64, Int<kHeadDim>, Int<Traits::kConfig.q_slots>>{},
                           make_coord(warpgroup, _0{}, _0{}))(_, _, slot);  // (64, d)
    auto copy_o = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, T>{}, typename Traits::MmaO{});
    auto thread_copy = copy_o.get_slice(thread);
    Tensor packed = make_tensor<std::uint32_t>(Shape<Int<kHeadDim / 4>>{});  // pairs, in O's order
    Tensor from = thread_copy.retile_S(make_tensor(recast<T>(packed).data(), o.layout()));  // (copy, 1, d/16)
    Tensor to = thread_copy.partition_D(sO);
    CUTE_UNROLL
    for (int i = 0; i < kHeadDim / 16; ++i) {  // 16 columns at a time: few registers beside O
      CUTE_UNROLL
      for (int n = 2 * i; n < 2 * i + 2; ++n) {
        CUTE_UNROLL
        for (int r = 0; r < 2; ++r) {
          packed(r + 2 * n) = device::pack_pair<Traits::kBFloat16>(output(r, make_coord(0, n)) * inverse[r],
                                                                   output(r, make_coord(1, n)) * inverse[r]);
        }
      }
      copy(copy_o, from(_, _, i), to(_, _, i));
    }

    if ((suspects[0] | suspects[1]) != 0) {
      if (Traits::kCareful && !careful) {
        if (lane == 0) {
          shared.redo_flag[slot] = 1;  // for the store warp, before o_full
        }
      } else {
        redo_rows(tile, sO, first_row, suspects);
      }
    }
    cutlass::arch::fence_view_async_shared();
    shared.o_full[slot].arrive();
    shared.q_empty[slot].arrive();
  }

  // After a __syncwarp the rows' first, wrong values are overwritten.
  template <class SharedO>
  __device__ __forceinline__ void redo_rows(const TileInfo& tile, SharedO& sO, int first_row,
                                            const unsigned (&suspects)[2]) const {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const unsigned lanes = i < 8 ? suspects[0] : suspects[1];
      if ((lanes >> (4 * (i % 8)) & 0xfu) == 0) {
        continue;
      }
      const int row = first_row + i;
      const int in_tile = thread / 32 * 16 + i;
      const float lse = device::exact_row<T, kHeadDim>(
          params, tile.batch, tile.head, row, device::key_end<Traits::kKey.mask>(params, row),
          [&](int column, float value) { sO(in_tile, column) = T(value); });
      if (thread % 32 == 0) {
        write_lse(tile, row, lse);
      }
    }
  }
};

}  // namespace attn::sm90
