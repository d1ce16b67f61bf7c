// One tensor against what it must be; shared by validate and merge_partials. Tested in tests/negative.
#pragma once

#include <array>
#include <attn/plan.hpp>
#include <attn/status.hpp>
#include <attn/tensor.hpp>
#include <cstdint>
#include <string>

namespace attn::core {

// batch × stride must stay far from 2⁶³.
inline constexpr std::int64_t kMaxPageTableStride = std::int64_t{1} << 31;

// dtype, shape, presence, contiguous last axis, element alignment, reach; for a written tensor also that no
// two elements share an address.
Status check_tensor(const std::string& name, const TensorView& t, DType dtype,
                    const std::array<std::int64_t, 4>& shape, bool written);

// "(2, 3, 5, 7)"
[[nodiscard]] std::string shape_text(const std::array<std::int64_t, 4>& shape);

// cu_seqlens, seqused_kv, page table, rotary positions and slopes, as host memory (validate_metadata.cpp).
Status validate_metadata(const Problem& problem, const Tensors& tensors);

// Whether two tensors surely share memory: the same first element, or extents that meet while neither has a
// gap in which the other could lie. (Whether tensors with gaps interleave or collide is not decided here.)
[[nodiscard]] bool surely_overlap(const TensorView& a, const TensorView& b);

}  // namespace attn::core
