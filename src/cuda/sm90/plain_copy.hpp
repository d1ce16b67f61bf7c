// Tiles between global and shared memory by plain loads and stores, for tensors that TMA does not take (rows
// or base off 16 bytes, negative strides). The shared side looks as TMA would have left it: boxes of 64
// columns, 128-byte swizzle, zeros beyond the tensor. Slower than TMA by far, since every element is a load
// of its own where rows are not aligned; nothing else of the kernel changes. Tested by tests/kernels over odd
// bases and strides.
#pragma once

#include "cuda/sm90/shared_storage.hpp"

namespace attn::sm90 {

// One head's rows of a tensor, as far as they exist.
template <class T>
struct PlainRows {
  T* base;  // row 0
  std::int64_t stride;
  int num_rows;
  int num_columns;  // a multiple of 8
};

template <class T>
__device__ __forceinline__ bool is_aligned(const PlainRows<T>& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.base) % 16 == 0 &&
         rows.stride * static_cast<int>(sizeof(T)) % 16 == 0;
}

// Where 8 columns from 8·group of a tile's row lie, in units of 16 bytes.
template <int kRows>
__device__ __forceinline__ int swizzled(int row, int group) {
  return (group / 8 * kRows + row) * 8 + (group % 8 ^ row % 8);
}

// By `num_threads` threads, of which this is `thread`. Fence and barrier are the caller's.
template <int kRows, int kStored, class T>
__device__ __forceinline__ void plain_load(const PlainRows<const T>& from, int first_row, T* to, int thread,
                                           int num_threads) {
  constexpr int kGroups = kStored / 8;
  const bool aligned = is_aligned(from);
  auto* words = reinterpret_cast<uint4*>(to);
#pragma unroll 1
  for (int i = thread; i < kRows * kGroups; i += num_threads) {
    const int row = i / kGroups;
    const int group = i % kGroups;
    uint4 word{};
    if (first_row + row < from.num_rows && 8 * group < from.num_columns) {
      const T* source = from.base + (first_row + row) * from.stride + 8 * group;
      if (aligned) {
        word = *reinterpret_cast<const uint4*>(source);
      } else {
        const auto* halves = reinterpret_cast<const unsigned short*>(source);
        word.x = halves[0] | static_cast<unsigned>(halves[1]) << 16;
        word.y = halves[2] | static_cast<unsigned>(halves[3]) << 16;
        word.z = halves[4] | static_cast<unsigned>(halves[5]) << 16;
        word.w = halves[6] | static_cast<unsigned>(halves[7]) << 16;
      }
    }
    words[swizzled<kRows>(row, group)] = word;
  }
}

// The same elements by the same threads each time, so that a tile's second, right values land after the
// first.
template <int kRows, int kStored, class T>
__device__ __forceinline__ void plain_store(const PlainRows<T>& to, int first_row, const T* from, int thread,
                                            int num_threads) {
  constexpr int kGroups = kStored / 8;
  const auto* words = reinterpret_cast<const uint4*>(from);
#pragma unroll 1
  for (int i = thread; i < kRows * kGroups; i += num_threads) {
    const int row = i / kGroups;
    const int group = i % kGroups;
    if (first_row + row < to.num_rows && 8 * group < to.num_columns) {
      const uint4 word = words[swizzled<kRows>(row, group)];
      auto* halves = reinterpret_cast<unsigned short*>(to.base + (first_row + row) * to.stride + 8 * group);
      const unsigned parts[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        halves[e] = static_cast<unsigned short>(parts[e / 2] >> 16 * (e % 2));
      }
    }
  }
}

}  // namespace attn::sm90
