// Layouts and their transforms: how tiles lie in shared memory, and how an accumulator is looked at in other
// ways without moving a value. All of it is layout algebra that the host can run:
// tests/unit/cuda_layouts_test.cpp checks it against the PTX ISA's pictures of the wgmma fragments.
#pragma once

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/layout.hpp>
#include <cute/tensor.hpp>

namespace attn::device {

using namespace cute;

// Q, K (and O) tiles: head_dim is the contiguous mode; 64 elements (128 bytes) of it make one TMA box, and
// the boxes of a tile follow one another. (rows, head_dim, stages)
template <class Element, int kRows, int kHeadDim, int kStages>
using KMajorTile = decltype(tile_to_shape(SM90::GMMA::Layout_K_SW128_Atom<Element>{},
                                          Shape<Int<kRows>, Int<kHeadDim>, Int<kStages>>{}));

// The same bytes as KMajorTile<Element, kRows, kHeadDim, kStages> seen with the modes exchanged: V as the B
// operand of P·V, whose "N" is head_dim and whose "K" is the key. (head_dim, rows, stages)
template <class Element, int kRows, int kHeadDim, int kStages>
using TransposedTile =
    decltype(tile_to_shape(SM90::GMMA::Layout_MN_SW128_Atom<Element>{},
                           Shape<Int<kHeadDim>, Int<kRows>, Int<kStages>>{}, Step<_2, _1, _3>{}));

// A wgmma accumulator of N columns holds ((2, 2, N/8), 1, 1) values a thread: (column pair, row half,
// 8-column group). Seen as (row half, (column pair, group)):
template <class Layout>
CUTE_HOST_DEVICE constexpr auto rows_and_columns(Layout acc) {
  static_assert(decltype(rank<0>(acc))::value == 3 && decltype(size<1>(acc))::value == 1);
  return make_layout(get<0, 1>(acc), make_layout(get<0, 0>(acc), get<0, 2>(acc)));
}

// The same accumulator as the register A operand of the next product, whose fragment for 16 columns is
// (2, 2, 2) = (column pair, row half, 8-column group): ((2, 2, 2), 1, N/16).
template <class Layout>
CUTE_HOST_DEVICE constexpr auto as_operand_a(Layout acc) {
  static_assert(decltype(rank<0>(acc))::value == 3 && decltype(size<1>(acc))::value == 1);
  auto groups = logical_divide(get<0, 2>(acc), Int<2>{});  // (2, N/16)
  return make_layout(make_layout(get<0, 0>(acc), get<0, 1>(acc), get<0>(groups)), get<1>(acc),
                     get<1>(groups));
}

}  // namespace attn::device
