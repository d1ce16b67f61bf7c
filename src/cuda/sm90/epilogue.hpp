// The end of a tile for one warpgroup: rows are divided by their sums (a sink counts as one more), LSE goes
// to global memory, O goes through the tile's own Q slot to the store warp. Rows that are not finite (or lost
// range) are suspects: where masked keys exist the tile is done again carefully, and what is then still
// suspect is left to exact_row. So masked NaN and Inf leave no trace, not a bit, and V may have any
// magnitude. Tested by tests/kernels.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/device/exact_row.hpp"
#include "cuda/device/online_softmax.hpp"
#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

template <class Traits>
struct Epilogue {
  using T = typename Traits::T;
  static constexpr Mask kMask = Traits::kKey.mask;
  static constexpr bool kChanged = Traits::kKey.logits == Logits::kChanged;
  static constexpr int kHeadDimV = Traits::kHeadDimV;
  static_assert(kHeadDimV % 16 == 0);  // store_block

  const cuda::ForwardParams& params;
  typename Traits::SharedStorage& shared;
  int warpgroup;
  int thread;

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

  // Of this thread's two rows, lane / 4 of the warp's 16 and 8 more.
  struct Sums {
    float sum[2];
    float inverse[2];  // what O is multiplied with
    float lse[2];
  };

  // Of row half r, NaN if some element is Inf or NaN, else 0: in two chains, of even and of odd n.
  struct NotFinite {
    std::uint32_t sum[2][2] = {};
    [[nodiscard]] __device__ __forceinline__ bool any(int r) const { return (sum[r][0] | sum[r][1]) != 0; }
  };

  // The warp's first row.
  [[nodiscard]] __device__ __forceinline__ int first_row(const TileInfo& tile) const {
    return tile.m_tile * Traits::kTileM + warpgroup * 64 + thread / 32 * 16;
  }

  // What needs no O, in two steps: waits for other things hide what each takes.
  template <class OnlineSoftmax>
  __device__ __forceinline__ static void begin_rows(OnlineSoftmax const& softmax, Sums& sums) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums.sum[r] = device::pair_sum(softmax.row_sum[r]);
    }
  }
  template <class OnlineSoftmax>
  __device__ __forceinline__ void finish_rows(const Ring<Traits::kConfig.q_slots>& slot,
                                              OnlineSoftmax const& softmax, Sums& sums) const {
    const TileInfo& tile = shared.info[Traits::info_slot(slot)];  // the slot is this tile's until o_full
    const int row = kChanged ? first_row(tile) + thread % 32 / 4 : 0;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums.sum[r] = device::sum_of_pairs(sums.sum[r]);
    }
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const device::RowEnd<Traits::kKey.logits> row_end(params, tile.batch, tile.head, row + 8 * r,
                                                        device::key_begin<kMask>(params, row + 8 * r),
                                                        device::key_end<kMask>(params, row + 8 * r));
      sums.lse[r] =
          row_end.finish(params, sums.sum[r], softmax.reference[r], &sums.inverse[r]) * device::kLn2;
    }
  }

  // Rows are divided by their sums and stored. Returns whether the warpgroup has rows to be judged: they are
  // not finite, or may have lost range.
  template <class Output, class OnlineSoftmax>
  [[nodiscard]] __device__ __forceinline__ bool store(const Ring<Traits::kConfig.q_slots>& slot,
                                                      Output const& output, OnlineSoftmax const& softmax,
                                                      Sums& sums, bool careful, NotFinite& not_finite,
                                                      int barrier) const {
    not_finite = {};
    if constexpr (!Traits::kDirectO) {
      store_to_slot(output, sums, slot.index, not_finite);
    } else {
      const TileInfo& tile = shared.info[Traits::info_slot(slot)];
      if ((params.plain & cuda::kPlainO) == 0) {
        store_through_boxes(output, sums, tile, careful, not_finite);
      } else {
        store_to_global(output, sums, tile, not_finite);
      }
    }
    bool suspect = Traits::kCareful && careful;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      suspect |= not_finite.any(r) || !(sums.sum[r] < INFINITY) || sums.sum[r] == 0.0f;
      if constexpr (OnlineSoftmax::kWideMargin) {
        suspect |= softmax.wide_margin[r];
      }
    }
    // All of a warpgroup agree: those that judge wait for the next product elsewhere in the code, and the
    // four warps must do so together (PTX ISA, wgmma.wait_group). The vote tells the compiler that a warp's
    // lanes do.
    return __any_sync(0xffffffffu, device::any_of_warpgroup(barrier, suspect)) != 0;
  }

  // The tile is this warpgroup's no more.
  __device__ __forceinline__ void hand_on(const Ring<Traits::kConfig.q_slots>& slot, const Sums& sums) const {
    const TileInfo& tile = shared.info[Traits::info_slot(slot)];
    const int row = first_row(tile) + thread % 32 / 4;
    const int head = tile.head;
    const int batch = tile.batch;
    if constexpr (!Traits::kDirectO) {
      cutlass::arch::fence_view_async_shared();
    }
    shared.o_full[Traits::info_slot(slot)].arrive();
    if constexpr (!Traits::kDirectO) {
      shared.q_empty[slot.index].arrive();
    }
    write_lse(row, head, batch, sums);  // none of the slot's business
  }

  __device__ __forceinline__ void write_lse(int row, int head, int batch, const Sums& sums) const {
    if (params.lse != nullptr && thread % 4 == 0) {
      float* to = params.lse + batch * params.lse_strides.batch + head * params.lse_strides.heads +
                  row * params.lse_strides.seqlen;
      if (row < params.seqlen_q) {
        to[0] = sums.lse[0];
      }
      if (row + 8 < params.seqlen_q) {
        to[8 * params.lse_strides.seqlen] = sums.lse[1];
      }
    }
  }

  // Looks again at a warp's rows one of which may be wrong: the tile is done once more, or the rows are.
  template <class Output, class OnlineSoftmax>
  __device__ __forceinline__ void judge(const Ring<Traits::kConfig.q_slots>& slot, Output const& output,
                                        OnlineSoftmax const& softmax, Sums& sums, const NotFinite& not_finite,
                                        bool careful) const {
    const int info_slot = Traits::info_slot(slot);
    const TileInfo& tile = shared.info[info_slot];
    unsigned suspects[2];  // lanes whose row half r must be redone
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first_row(tile) + thread % 32 / 4 + 8 * r;
      const int begin = device::key_begin<kMask>(params, row);
      const int end = device::key_end<kMask>(params, row);
      bool suspect = not_finite.any(r) || !(sums.sum[r] < INFINITY);
      suspect |= sums.sum[r] == 0.0f && end > begin;  // logits of −inf, or below every reference
      if (Traits::kCareful && careful) {
        suspect |= sees_bad_key(tile, begin, end);
      }
      if constexpr (OnlineSoftmax::kWideMargin) {
        float magnitude = 0.0f;
        CUTE_UNROLL
        for (int n = 0; n < kHeadDimV / 8; ++n) {
          magnitude += fabsf(output(r, cute::make_coord(0, n))) + fabsf(output(r, cute::make_coord(1, n)));
        }
        suspect |= softmax.wide_margin[r] & (device::quad_sum(magnitude) < device::kWideMarginFloor);
      }
      suspects[r] = __ballot_sync(0xffffffffu, suspect && row < params.seqlen_q);
    }
    if ((suspects[0] | suspects[1]) == 0) {
      return;
    }
    if (Traits::kCareful && !careful) {
      if (thread % 32 == 0) {
        shared.redo_flag[info_slot] = 1;  // for the store warp, before o_full
      }
    } else {
      redo_rows(slot.index, tile, suspects, sums);
    }
  }

  // Columns 8n + 2 (lane % 4) and the next, of row half r, as they are stored. not_finite gets NaN from a
  // value that is not finite: 0 · x is 0 for all others.
  template <class Output>
  __device__ __forceinline__ static std::uint32_t packed_pair(Output const& output, const Sums& sums, int r,
                                                              int n, NotFinite& not_finite) {
    const std::uint32_t pair =
        device::pack_pair<Traits::kBFloat16>(output(r, cute::make_coord(0, n)) * sums.inverse[r],
                                             output(r, cute::make_coord(1, n)) * sums.inverse[r]);
    std::uint32_t& sum = not_finite.sum[r][n % 2];
    sum = device::add_zero_times<Traits::kBFloat16>(sum, pair);
    return pair;
  }

  // A warp's 16 x 16 block i of O to its place in a tile of kRows rows at `tile` (shared memory, swizzled).
  // stmatrix: lane l gives the address of row l % 8 of matrix l / 8, and the block's four matrices come in
  // the order of the accumulator: (rows, rows + 8) of 8 columns, then of the next 8. `row` is this lane's in
  // the tile. A row's 128 bytes of one box are 8 chunks, and chunk c lies at c ^ row % 8.
  template <int kRows, class Output>
  __device__ __forceinline__ void store_block(std::uint32_t tile, int row, Output const& output,
                                              const Sums& sums, int i, int box, NotFinite& not_finite) const {
    const std::uint32_t chunk = ((thread % 32 / 16) ^ (row % 8)) << 4;
    const std::uint32_t in_box = (row * 128 + chunk) ^ i % 4 * 32;
    std::uint32_t packed[4];
    CUTE_UNROLL
    for (int m = 0; m < 4; ++m) {
      packed[m] = packed_pair(output, sums, m % 2, 2 * i + m / 2, not_finite);
    }
    device::store_matrices(tile + in_box + box * kRows * 128, packed);
  }

  template <class Output>
  __device__ __forceinline__ void store_to_slot(Output const& output, const Sums& sums, int slot,
                                                NotFinite& not_finite) const {
    const std::uint32_t tile =
        device::shared_address(shared.q) + slot * (Traits::kTileM * Traits::kStoredQk * 2);
    const int row = warpgroup * 64 + thread / 32 * 16 + thread % 16;
    CUTE_UNROLL
    for (int i = 0; i < kHeadDimV / 16; ++i) {
      store_block<Traits::kTileM>(tile, row, output, sums, i, i / 4, not_finite);
    }
  }

  // With one Q slot: each warp sends its 16 rows itself, a box of 64 columns at a time through two boxes of
  // its own, in turns.
  template <class Output>
  __device__ __forceinline__ void store_through_boxes(Output const& output, const Sums& sums,
                                                      const TileInfo& tile, bool careful,
                                                      NotFinite& not_finite) const {
    const int row = first_row(tile);
    const bool leader = thread % 32 == 0;
    if (Traits::kCareful && careful && leader) {
      device::bulk_stores_written();  // this tile's first, wrong values are to be overwritten
    }
    CUTE_UNROLL
    for (int c = 0; c < Traits::kStoredV / kBoxColumns; ++c) {
      const T* box = shared.o_boxes[warpgroup * 4 + thread / 32][c % 2];
      if (leader) {
        cute::tma_store_wait<1>();  // the box has been read: only the other one may still be on its way
      }
      __syncwarp();
      CUTE_UNROLL
      for (int i = 4 * c; i < 4 * c + 4 && i < kHeadDimV / 16; ++i) {
        store_block<16>(device::shared_address(box), thread % 16, output, sums, i, 0, not_finite);
      }
      cutlass::arch::fence_view_async_shared();
      __syncwarp();
      if (leader) {
        cute::SM90_TMA_STORE_4D::copy(&params.o, box, c * kBoxColumns, row, tile.head, tile.batch);
        cute::tma_store_arrive();
      }
    }
  }

  // Before a consumer thread ends: its boxes stay until they have been read.
  __device__ __forceinline__ static void leave(int thread) {
    if (Traits::kDirectO && thread % 32 == 0) {
      cute::tma_store_wait<0>();
    }
  }

  [[nodiscard]] __device__ __forceinline__ T* row_of_o(const TileInfo& tile, int row) const {
    return static_cast<T*>(params.o_data) + tile.batch * params.o_strides.batch +
           tile.head * params.o_strides.heads + row * params.o_strides.seqlen;
  }

  // Where O is not for TMA and has no slot to go through: element by element.
  template <class Output>
  __device__ __forceinline__ void store_to_global(Output const& output, const Sums& sums,
                                                  const TileInfo& tile, NotFinite& not_finite) const {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = first_row(tile) + thread % 32 / 4 + 8 * r;
      T* to = row_of_o(tile, row) + 2 * (thread % 4);
      CUTE_UNROLL
      for (int n = 0; n < kHeadDimV / 8; ++n) {
        const std::uint32_t pair = packed_pair(output, sums, r, n, not_finite);
        if (row < params.seqlen_q && 8 * n < params.head_dim_v) {
          auto* halves = reinterpret_cast<unsigned short*>(to + 8 * n);
          halves[0] = static_cast<unsigned short>(pair);
          halves[1] = static_cast<unsigned short>(pair >> 16);
        }
      }
    }
  }

  // The rows' first, wrong values are overwritten.
  __device__ __forceinline__ void redo_rows(int slot, const TileInfo& tile, const unsigned (&suspects)[2],
                                            Sums& sums) const {
    using namespace cute;
    [[maybe_unused]] Tensor sO =
        make_tensor(make_smem_ptr(shared.q + slot * Traits::kTileM * Traits::kStoredQk),
                    typename Traits::LayoutO{});  // (M, d_v, 1)
    if (Traits::kDirectO && thread % 32 == 0) {
      device::bulk_stores_written();
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const unsigned lanes = i < 8 ? suspects[0] : suspects[1];
      if ((lanes >> (4 * (i % 8)) & 0xfu) == 0) {
        continue;
      }
      const int row = first_row(tile) + i;
      const int row_in_tile = warpgroup * 64 + thread / 32 * 16 + i;
      const float exact = device::exact_row<T, Traits::kKey>(params, tile.batch, tile.head, row,
                                                             [&](int column, float value) {
                                                               if constexpr (Traits::kDirectO) {
                                                                 row_of_o(tile, row)[column] = T(value);
                                                               } else {
                                                                 sO(row_in_tile, column, 0) = T(value);
                                                               }
                                                             });
      const bool own = thread % 32 / 4 == i % 8;
      sums.lse[0] = own && i < 8 ? exact : sums.lse[0];
      sums.lse[1] = own && i >= 8 ? exact : sums.lse[1];
    }
  }
};

}  // namespace attn::sm90
