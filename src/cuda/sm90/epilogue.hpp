// The end of a tile for one warpgroup: rows are divided by their sums (a sink counts as one more), LSE goes
// to global memory, O goes through the tile's own Q slot to the store warp. Rows that are not finite (or lost
// range) are suspects: where masked keys exist the tile is done again carefully, and what is then still
// suspect is left to exact_row. So masked NaN and Inf leave no trace, not a bit, and V may have any
// magnitude. Tested by tests/kernels.
#pragma once

#include <cute/arch/copy_sm90.hpp>

#include "cuda/device/exact_row.hpp"
#include "cuda/device/online_softmax.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct Epilogue {
  using T = typename Traits::T;
  static constexpr Mask kMask = Traits::kKey.mask;
  static constexpr int kHeadDimV = Traits::kHeadDimV;

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int warpgroup;
  int thread;

  __device__ __forceinline__ void write_lse(const TileInfo& tile, int row, float lse) const {
    if (params.lse != nullptr && row < params.seqlen_q) {
      params.lse[tile.batch * params.lse_strides.batch + tile.head * params.lse_strides.heads +
                 row * params.lse_strides.seqlen] = lse;
    }
  }

  // Whether a careful tile's row sees a key whose NaN or Inf was taken out of its value.
  __device__ __forceinline__ bool sees_bad_key(const TileInfo& tile, int begin, int end) const {
    bool sees = false;
#pragma unroll 1
    for (int block = tile.block_end - 1; block >= tile.block_begin; --block) {
      if (block >= tile.unmasked_begin && block < tile.unmasked_end) {
        block = tile.unmasked_begin;
        continue;
      }
      const int first_bit = masked_ordinal(tile, block) * Traits::kTileN;
#pragma unroll 1
      for (int i = 0; i < Traits::kTileN; ++i) {
        const int key = block * Traits::kTileN + i;
        const int bit = first_bit + i;
        sees |= (shared.bad_keys[bit / 32] >> bit % 32 & 1u) != 0 && key >= begin && key < end;
      }
    }
    return sees;
  }

  template <class O, class OnlineSoftmax>
  __device__ __forceinline__ void finish(int slot, O& o, OnlineSoftmax& softmax, bool careful) const {
    using namespace cute;
    const TileInfo tile = shared.info[slot];  // the slot is this tile's until O has left it
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));
    const int lane = thread % 32;
    const int first_row = tile.m_tile * Traits::kTileM + warpgroup * 64 + thread / 32 * 16;  // of the warp
    unsigned suspects[2];  // lanes whose row half r must be redone
    float inverse[2];
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + lane / 4 + 8 * r;
      const int begin = device::key_begin<kMask>(params, row);
      const int end = device::key_end<kMask>(params, row);
      const float sum = device::quad_sum(softmax.row_sum[r]);
      float magnitude = 0.0f;  // NaN or Inf if any of O is
      CUTE_UNROLL
      for (int n = 0; n < kHeadDimV / 8; ++n) {
        magnitude += fabsf(output(r, make_coord(0, n))) + fabsf(output(r, make_coord(1, n)));
      }
      bool suspect = !(magnitude < INFINITY) || !(sum < INFINITY);
      suspect |= sum == 0.0f && end > begin;  // logits of −inf, or below every reference
      if (Traits::kCareful && careful) {
        suspect |= sees_bad_key(tile, begin, end);
      }
      if constexpr (Traits::kConfig.softmax == Softmax::kSpeculative) {
        suspect |= softmax.wide_margin[r] & (device::quad_sum(magnitude) < device::kWideMarginFloor);
      }
      suspects[r] = __ballot_sync(0xffffffffu, suspect && row < params.seqlen_q);

      device::RowEnd<Traits::kKey.logits> row_end(params, tile.batch, tile.head, row, begin, end);
      const float lse = row_end.finish(params, sum, softmax.reference[r], &inverse[r]);
      if (lane % 4 == 0) {
        write_lse(tile, row, lse);
      }
    }

    // stmatrix: lane l gives the address of row l % 8 of matrix l / 8, and a warp's 16 x 16 are four matrices
    // in the order of the accumulator: (rows, rows + 8) of 8 columns, then of the next 8.
    Tensor sO = make_tensor(make_smem_ptr(shared.q + slot * Traits::kTileM * Traits::kStoredQk),
                            typename Traits::LayoutO{});  // (M, d_v, 1)
    const int row_in_tile = warpgroup * 64 + thread / 32 * 16;
    const int stored_row = row_in_tile + lane % 16;
    CUTE_UNROLL
    for (int i = 0; i < kHeadDimV / 16; ++i) {  // 16 columns at a time: few registers beside O
      std::uint32_t packed[4];
      CUTE_UNROLL
      for (int n = 0; n < 2; ++n) {
        CUTE_UNROLL
        for (int r = 0; r < 2; ++r) {
          packed[r + 2 * n] =
              device::pack_pair<Traits::kBFloat16>(output(r, make_coord(0, 2 * i + n)) * inverse[r],
                                                   output(r, make_coord(1, 2 * i + n)) * inverse[r]);
        }
      }
      SM90_U32x4_STSM_N::copy(
          packed[0], packed[1], packed[2], packed[3],
          *reinterpret_cast<uint128_t*>(raw_pointer_cast(&sO(stored_row, 16 * i + lane / 16 * 8, 0))));
    }

    if ((suspects[0] | suspects[1]) != 0) {
      if (Traits::kCareful && !careful) {
        if (lane == 0) {
          shared.redo_flag[slot] = 1;  // for the store warp, before o_full
        }
      } else {
        redo_rows(tile, sO, first_row, row_in_tile, suspects);
      }
    }
    cutlass::arch::fence_view_async_shared();
    shared.o_full[slot].arrive();
    shared.q_empty[slot].arrive();
  }

  // After a __syncwarp the rows' first, wrong values are overwritten.
  template <class SharedO>
  __device__ __forceinline__ void redo_rows(const TileInfo& tile, SharedO& sO, int first_row, int row_in_tile,
                                            const unsigned (&suspects)[2]) const {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const unsigned lanes = i < 8 ? suspects[0] : suspects[1];
      if ((lanes >> (4 * (i % 8)) & 0xfu) == 0) {
        continue;
      }
      const int row = first_row + i;
      const float lse = device::exact_row<T, Traits::kKey>(
          params, tile.batch, tile.head, row,
          [&](int column, float value) { sO(row_in_tile + i, column, 0) = T(value); });
      if (thread % 32 == 0) {
        write_lse(tile, row, lse);
      }
    }
  }
};

}  // namespace attn::sm90
