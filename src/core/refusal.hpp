// How a refusal is worded, everywhere: the argument, its value, what is allowed.
// Used by validate and support only. Tested in tests/negative.
#pragma once

#include <attn/status.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace attn::core {

inline Status invalid(std::string_view argument, std::string_view value, std::string_view allowed) {
  std::string message;
  message.append(argument).append(" is ").append(value).append("; allowed: ").append(allowed);
  return {StatusCode::kInvalidArgument, std::move(message)};
}

inline Status invalid(std::string_view argument, std::int64_t value, std::string_view allowed) {
  return invalid(argument, std::string_view{std::to_string(value)}, allowed);
}

inline Status check_range(std::string_view argument, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
  if (value >= low && value <= high) {
    return {};
  }
  return invalid(argument, value, std::to_string(low) + " to " + std::to_string(high));
}

}  // namespace attn::core

// Returns from the enclosing function with the first status that is not ok.
#define ATTN_RETURN_IF_ERROR(expression)                                \
  do {                                                                  \
    if (::attn::Status attn_status = (expression); !attn_status.ok()) { \
      return attn_status;                                               \
    }                                                                   \
  } while (false)
