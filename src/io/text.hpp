// What a file says, made safe to print in a message: names and header text come from anywhere.
// Tested in tests/unit/io_array_test.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace attn::io {

// In single quotes; control characters, quotes, backslashes and bytes that are not UTF-8 as escapes, and
// "…" after so many bytes.
[[nodiscard]] std::string quote_text(std::string_view text, std::size_t max_bytes = 120);

}  // namespace attn::io
