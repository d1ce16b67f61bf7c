// ATTN_API marks what the shared library exports. Everything else is hidden, and the linker script
// cmake/attn.map holds the list to `attn_*` and the versioned C++ namespace.
#pragma once

#if defined(ATTN_STATIC)
#define ATTN_API
#else
#define ATTN_API __attribute__((visibility("default")))
#endif
