// Names of the small enums, and the version. Tested in tests/unit/status_test.cpp.
#include <attn/attn.hpp>

#define ATTN_STRING_OF(x) #x
#define ATTN_STRING(x) ATTN_STRING_OF(x)

namespace attn::inline v1 {

const char* to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kOutOfMemory:
      return "out of memory";
    case StatusCode::kBackendError:
      return "backend error";
    case StatusCode::kFileError:
      return "file error";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown status";
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat16:
      return "fp16";
    case DType::kBFloat16:
      return "bf16";
  }
  return "unknown dtype";
}

std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::kFloat32 ? 4 : 2;
}

const char* to_string(Backend backend) noexcept {
  switch (backend) {
    case Backend::kAuto:
      return "auto";
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
  }
  return "unknown backend";
}

const char* version() noexcept {
  return ATTN_STRING(ATTN_VERSION_MAJOR) "." ATTN_STRING(ATTN_VERSION_MINOR) "." ATTN_STRING(
      ATTN_VERSION_PATCH);
}

}  // namespace attn::inline v1
