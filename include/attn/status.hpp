// Status: how every call of libattn reports. The library never prints, aborts or throws for bad
// input; it returns a code and a message that names the argument, its value and what is allowed.
// Tested in tests/unit/status_test.cpp and tests/negative.
#pragma once

#include <attn/export.hpp>
#include <cstdint>
#include <string>
#include <utility>

namespace attn::inline v1 {

// Values are fixed: they are also those of the C ABI.
enum class StatusCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // not well formed, whatever the backend
  kUnsupported = 2,      // well formed, but no backend (or not the one asked for) can do it
  kUnavailable = 3,      // the backend cannot be used on this machine (no GPU, driver too old, …)
  kOutOfMemory = 4,      // an allocation failed
  kBackendError = 5,     // the driver reported a failure
  kFileError = 6,        // a file is missing, unreadable or malformed (tools and src/io only)
  kInternal = 7,         // a defect of libattn
};

ATTN_API const char* to_string(StatusCode code) noexcept;

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const noexcept { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const noexcept { return code_; }
  // Empty when ok. One sentence, no trailing newline.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace attn::inline v1
