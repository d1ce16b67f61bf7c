// The thread's last error. Tested in tests/capi/arguments_test.c.
#include "capi/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace attn::capi {
namespace {

// A plain array: no destructor to run at thread exit or dlclose, no allocation where memory has just run out.
// The longest refusals name two shapes and stay far below it.
thread_local std::array<char, 1024> last_message{};

}  // namespace

attn_status_t report(StatusCode code, std::string_view message) noexcept {
  if (code != StatusCode::kOk) {
    const std::size_t size = std::min(message.size(), last_message.size() - 1);
    std::memcpy(last_message.data(), message.data(), size);
    last_message[size] = '\0';
  }
  return static_cast<attn_status_t>(code);
}

attn_status_t report(const Status& status) noexcept {
  return report(status.code(), status.message());
}

const char* last_error() noexcept {
  return last_message.data();
}

}  // namespace attn::capi
