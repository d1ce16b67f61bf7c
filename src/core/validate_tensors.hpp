// One tensor against what it must be; shared by validate and merge_partials. Tested in tests/negative.
#pragma once

#include <array>
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

}  // namespace attn::core
