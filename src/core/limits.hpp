// The sizes that a well-formed problem may have. Lengths and offsets in metadata are int32 by the interface,
// so rows stop there; the products of sizes and strides are checked against int64 where tensors are known.
#pragma once

#include <cstdint>

namespace attn::core {

inline constexpr std::int64_t kMaxLength = 2147483647;  // int32 metadata
inline constexpr std::int64_t kMaxHeadDim = 65536;      // what validate lets through; backends say their own
inline constexpr std::int64_t kMaxSplits = 1024;        // partial results per row

// Scales and slopes are multiplied by log2 e in fp32 and must not overflow there.
inline constexpr float kMaxScale = 0x1p126F;

// Workspaces begin at a multiple of this: one cache line, and more than any vector needs.
inline constexpr std::int64_t kWorkspaceAlignment = 64;

}  // namespace attn::core
