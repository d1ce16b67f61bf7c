// Version of these headers; version() is that of the library in use.
#pragma once

#include <attn/export.hpp>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

namespace attn::inline v1 {
ATTN_API const char* version() noexcept;  // "0.1.0"
}
