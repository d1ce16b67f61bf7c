// Text into a caller's buffer. Tested in tests/capi/arguments_test.c.
#include "capi/text.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/refusal.hpp"

namespace attn::capi {

Status check_buffer(const char* buffer, std::size_t capacity) {
  if (buffer == nullptr && capacity > 0) {
    return core::invalid("buffer", "null",
                         "the address of " + std::to_string(capacity) + " bytes, or capacity 0");
  }
  return {};
}

void copy_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length) noexcept {
  if (capacity > 0) {
    const std::size_t size = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), size);
    buffer[size] = '\0';
  }
  if (length != nullptr) {
    *length = text.size();
  }
}

}  // namespace attn::capi
