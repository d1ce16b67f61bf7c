// The JSON header of a .safetensors file, read event by event: no document is built, nesting is bounded by
// the format itself, and every defect is named with its tensor. Tested in tests/unit/io_safetensors_test.cpp
// and tests/fuzz.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"

namespace attn::io {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in order of their place in the file
  Metadata metadata;
};

// Bits of one element of each dtype of the format; 0: not one of them.
[[nodiscard]] int safetensors_bits(std::string_view dtype) noexcept;

// False with the reason in `error`. `data_bytes` is the size of what follows the header: the tensors must
// cover it exactly.
bool parse_safetensors_header(std::string_view text, std::int64_t data_bytes, SafetensorsHeader* header,
                              std::string* error);

}  // namespace attn::io
