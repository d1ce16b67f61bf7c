// The layout algebra of the sm90 kernels on the host: where a thread's accumulator values stand, their views
// by row and as the next product's A operand, and the shared-memory layouts of tiles and of V transposed. The
// expected positions are written from the PTX ISA's figures of the wgmma fragments and of the 128-byte
// swizzle, without CuTe.
#include <gtest/gtest.h>

#include <cstdint>
#include <cute/numeric/numeric_types.hpp>

#include "cuda/device/layouts.hpp"

namespace {

using namespace cute;
namespace device = attn::device;

// PTX ISA, wgmma m64nNk16, D fragment: value i of a thread is at this row and column.
struct Position {
  int row;
  int column;
  bool operator==(const Position&) const = default;
};
Position accumulator_position(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), thread % 4 * 2 + i % 2 + 8 * (i / 4)};
}
// PTX ISA, A fragment of m64k16 in registers: value i of a thread.
Position operand_a_position(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), thread % 4 * 2 + i % 2 + 8 * (i / 4)};
}

template <int kN>
auto accumulator() {
  return Layout<Shape<Shape<_2, _2, Int<kN / 8>>, _1, _1>>{};
}

template <int kN>
void check_accumulator() {
  const auto layout = accumulator<kN>();
  ASSERT_EQ(size(layout), kN / 2);
  const auto rows = device::rows_and_columns(layout);
  const auto operand = device::as_operand_a(layout);
  ASSERT_EQ(size(rows), kN / 2);
  ASSERT_EQ(size(operand), kN / 2);
  for (const int thread : {0, 1, 5, 31, 32, 77, 127}) {
    for (int r = 0; r < 2; ++r) {
      for (int n = 0; n < kN / 8; ++n) {
        for (int e = 0; e < 2; ++e) {
          const int i = static_cast<int>(rows(r, make_coord(e, n)));
          EXPECT_EQ(accumulator_position(thread, i),
                    (Position{thread / 32 * 16 + thread % 32 / 4 + 8 * r, 8 * n + thread % 4 * 2 + e}));
        }
      }
    }
    // Step k of the second product multiplies columns 16k … 16k + 15 of S: its fragment must hold just those.
    for (int k = 0; k < kN / 16; ++k) {
      for (int i = 0; i < 8; ++i) {
        const int source = static_cast<int>(operand(make_coord(i % 2, i / 2 % 2, i / 4), 0, k));
        const Position at = operand_a_position(thread, i);
        EXPECT_EQ(accumulator_position(thread, source), (Position{at.row, at.column + 16 * k}));
      }
    }
  }
}

TEST(CudaLayouts, AccumulatorByRowsAndAsOperandA) {
  check_accumulator<64>();
  check_accumulator<80>();
  check_accumulator<96>();
  check_accumulator<128>();
  check_accumulator<192>();
}

TEST(CudaLayouts, PackedPairsKeepTheAccumulatorsOrder) {
  // online_softmax.hpp packs columns e = 0, 1 of (row half r, group n) into word r + 2·n.
  const auto rows = device::rows_and_columns(accumulator<128>());
  for (int n = 0; n < 16; ++n) {
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(rows(r, make_coord(0, n)), 2 * (r + 2 * n));
      EXPECT_EQ(rows(r, make_coord(1, n)), 2 * (r + 2 * n) + 1);
    }
  }
}

// Where TMA with a 64-element (128-byte) box and the 128-byte swizzle puts element (row, column) of a tile
// whose boxes follow one another: CUDA programming guide, figure of CU_TENSOR_MAP_SWIZZLE_128B. In elements
// of 2 bytes.
int tma_offset(int rows, int row, int column) {
  const int chunk = column / 64;
  const int piece = column % 64 / 8;  // 16 bytes
  return chunk * rows * 64 + row * 64 + (piece ^ row % 8) * 8 + column % 8;
}

template <int kRows, int kHeadDim>
void check_tiles() {
  using Element = cute::half_t;
  constexpr int kStages = 2;
  const auto k_tile = device::KMajorTile<Element, kRows, kHeadDim, kStages>{};
  const auto v_tile = device::TransposedTile<Element, kRows, kHeadDim, kStages>{};
  alignas(1024) static Element storage[kRows * kHeadDim * kStages];
  auto k = as_position_independent_swizzle_tensor(make_tensor(make_smem_ptr(storage), k_tile));
  auto v = as_position_independent_swizzle_tensor(make_tensor(make_smem_ptr(storage), v_tile));
  for (int stage = 0; stage < kStages; ++stage) {
    for (int row = 0; row < kRows; row += 3) {
      for (int column = 0; column < kHeadDim; column += 5) {
        const int expected = stage * kRows * kHeadDim + tma_offset(kRows, row, column);
        EXPECT_EQ(static_cast<int>(k.layout()(row, column, stage)), expected);
        EXPECT_EQ(static_cast<int>(v.layout()(column, row, stage)), expected);  // the same bytes, transposed
      }
    }
  }
}

TEST(CudaLayouts, TilesLieAsTmaWritesThem) {
  check_tiles<128, 64>();
  check_tiles<128, 128>();
  check_tiles<64, 256>();
  check_tiles<192, 64>();
  check_tiles<96, 192>();
}

}  // namespace
