// Failures and exit codes: see command.hpp.
#include "command.hpp"

#include <utility>

namespace attn::tool {

ExitCode exit_code(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return kSuccess;
    case StatusCode::kInvalidArgument:
      return kUsage;
    case StatusCode::kUnsupported:
    case StatusCode::kUnavailable:
      return kUnsupported;
    case StatusCode::kFileError:
      return kFile;
    case StatusCode::kOutOfMemory:
    case StatusCode::kBackendError:
    case StatusCode::kInternal:
      break;
  }
  return kInternal;
}

void check(const Status& status, std::string_view context) {
  if (status.ok()) {
    return;
  }
  std::string message(context);
  message += context.empty() ? "" : ": ";
  message += status.message();
  throw Failure{exit_code(status.code()), std::move(message)};
}

void fail_usage(std::string message) {
  throw Failure{kUsage, std::move(message)};
}

}  // namespace attn::tool
