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
  static_assert(kHeadDimV % 32 == 0 || !Traits::kDirectO);

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
  __device__ __forceinline__ void finish(const Ring<Traits::kConfig.q_slots>& slot, O& o,
                                         OnlineSoftmax& softmax, bool careful) const {
    using namespace cute;
    const int info_slot = Traits::info_slot(slot);
    const TileInfo tile = shared.info[info_slot];  // the slot is this tile's until o_full
    auto output = make_tensor(o.data(), device::rows_and_columns(o.layout()));
    const int lane = thread % 32;
    const int first_row = tile.m_tile * Traits::kTileM + warpgroup * 64 + thread / 32 * 16;  // of the warp
    unsigned suspects[2];  // lanes whose row half r must be redone
    float inverse[2];
    float lse[2];
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + lane / 4 + 8 * r;
      const int begin = device::key_begin<kMask>(params, row);
      const int end = device::key_end<kMask>(params, row);
      const float sum = device::quad_sum(softmax.row_sum[r]);
      float magnitudes[4] =
          {};  // NaN or Inf if any of O is; four chains, since each addition waits for the last
      CUTE_UNROLL
      for (int n = 0; n < kHeadDimV / 8; ++n) {
        magnitudes[n % 4] += fabsf(output(r, make_coord(0, n))) + fabsf(output(r, make_coord(1, n)));
      }
      const float magnitude = (magnitudes[0] + magnitudes[1]) + (magnitudes[2] + magnitudes[3]);
      bool suspect = !(magnitude < INFINITY) || !(sum < INFINITY);
      suspect |= sum == 0.0f && end > begin;  // logits of −inf, or below every reference
      if (Traits::kCareful && careful) {
        suspect |= sees_bad_key(tile, begin, end);
      }
      if constexpr (Traits::kConfig.softmax == Softmax::kSpeculative) {
        suspect |= softmax.wide_margin[r] & (device::quad_sum(magnitude) < device::kWideMarginFloor);
      }
      suspects[r] = __ballot_sync(0xffffffffu, suspect && row < params.seqlen_q);
      const device::RowEnd<Traits::kKey.logits> row_end(params, tile.batch, tile.head, row, begin, end);
      lse[r] = row_end.finish(params, sum, softmax.reference[r], &inverse[r]) * device::kLn2;
    }

    [[maybe_unused]] Tensor sO =
        make_tensor(make_smem_ptr(shared.q + slot.index * Traits::kTileM * Traits::kStoredQk),
                    typename Traits::LayoutO{});  // (M, d_v, 1)
    const int row_in_tile = warpgroup * 64 + thread / 32 * 16;
    if constexpr (Traits::kDirectO) {
      store_to_global(tile, output, inverse, first_row + lane / 4);
    } else {
      store_to_slot(output, inverse, sO, row_in_tile + lane % 16);
    }
    if (lane % 4 == 0) {
      write_lse(tile, first_row + lane / 4, lse[0]);
      write_lse(tile, first_row + lane / 4 + 8, lse[1]);
    }
    if ((suspects[0] | suspects[1]) != 0) {
      if (Traits::kCareful && !careful) {
        if (lane == 0) {
          shared.redo_flag[info_slot] = 1;  // for the store warp, before o_full
        }
      } else {
        redo_rows(tile, sO, first_row, row_in_tile, suspects);
      }
    }
    if constexpr (!Traits::kDirectO) {
      cutlass::arch::fence_view_async_shared();
    }
    shared.o_full[info_slot].arrive();
    if constexpr (!Traits::kDirectO) {
      shared.q_empty[slot.index].arrive();
    }
  }

  // Columns 8n + 2 (lane % 4) and the next, of row half r, as they are stored.
  template <class Output>
  __device__ __forceinline__ static std::uint32_t packed_pair(Output const& output, const float (&inverse)[2],
                                                              int r, int n) {
    return device::pack_pair<Traits::kBFloat16>(output(r, cute::make_coord(0, n)) * inverse[r],
                                                output(r, cute::make_coord(1, n)) * inverse[r]);
  }

  // stmatrix: lane l gives the address of row l % 8 of matrix l / 8, and a warp's 16 x 16 are four matrices
  // in the order of the accumulator: (rows, rows + 8) of 8 columns, then of the next 8. stored_row: the
  // lane's of these.
  template <class Output, class SharedO>
  __device__ __forceinline__ void store_to_slot(Output const& output, const float (&inverse)[2], SharedO& sO,
                                                int stored_row) const {
    using namespace cute;
    const int column = thread % 32 / 16 * 8;
    CUTE_UNROLL
    for (int i = 0; i < kHeadDimV / 16; ++i) {  // 16 columns at a time: few registers beside O
      std::uint32_t packed[4];
      CUTE_UNROLL
      for (int m = 0; m < 4; ++m) {
        packed[m] = packed_pair(output, inverse, m % 2, 2 * i + m / 2);
      }
      SM90_U32x4_STSM_N::copy(
          packed[0], packed[1], packed[2], packed[3],
          *reinterpret_cast<uint128_t*>(raw_pointer_cast(&sO(stored_row, 16 * i + column, 0))));
    }
  }

  [[nodiscard]] __device__ __forceinline__ T* row_of_o(const TileInfo& tile, int row) const {
    return static_cast<T*>(params.o_data) + tile.batch * params.o_strides.batch +
           tile.head * params.o_strides.heads + row * params.o_strides.seqlen;
  }

  // row: this lane's of row half 0. The four lanes of a row exchange what they hold of 32 columns, so that
  // each writes 16 bytes of its own; where rows are not aligned, each writes its own elements.
  template <class Output>
  __device__ __forceinline__ void store_to_global(const TileInfo& tile, Output const& output,
                                                  const float (&inverse)[2], int row) const {
    const int lane = thread % 4;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool exists = row + 8 * r < params.seqlen_q;
      T* to = row_of_o(tile, row + 8 * r);
      CUTE_UNROLL
      for (int n = 0; n < kHeadDimV / 8; n += 4) {
        std::uint32_t words[4];  // columns 8 (n + i) + 2 lane and the next
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) {
          words[i] = packed_pair(output, inverse, r, n + i);
        }
        if ((params.plain & cuda::kPlainO) == 0) {
          device::transpose_in_quad(words, lane);  // now columns 8 (n + lane) + 2 i and the next
          if (exists && 8 * (n + lane) < params.head_dim_v) {
            *reinterpret_cast<uint4*>(to + 8 * (n + lane)) =
                make_uint4(words[0], words[1], words[2], words[3]);
          }
        } else if (exists) {
          CUTE_UNROLL
          for (int i = 0; i < 4; ++i) {
            if (8 * (n + i) < params.head_dim_v) {
              auto* halves = reinterpret_cast<unsigned short*>(to + 8 * (n + i) + 2 * lane);
              halves[0] = static_cast<unsigned short>(words[i]);
              halves[1] = static_cast<unsigned short>(words[i] >> 16);
            }
          }
        }
      }
    }
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
      const float lse = device::exact_row<T, Traits::kKey>(params, tile.batch, tile.head, row,
                                                           [&](int column, float value) {
                                                             if constexpr (Traits::kDirectO) {
                                                               row_of_o(tile, row)[column] = T(value);
                                                             } else {
                                                               sO(row_in_tile + i, column, 0) = T(value);
                                                             }
                                                           });
      if (thread % 32 == 0) {
        write_lse(tile, row, lse);
      }
    }
  }
};

}  // namespace attn::sm90
