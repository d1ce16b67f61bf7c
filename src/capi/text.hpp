// Text into a caller's buffer, as snprintf does it. Tested in tests/capi/arguments_test.c.
#pragma once

#include <attn/status.hpp>
#include <cstddef>
#include <string_view>

namespace attn::capi {

Status check_buffer(const char* buffer, std::size_t capacity);
void copy_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length) noexcept;

}  // namespace attn::capi
