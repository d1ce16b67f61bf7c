// How a Status leaves through the C ABI: its code is returned, its message is kept for this thread's
// attn_last_error. No exception passes `guarded`. Tested in tests/capi.
#pragma once

#include <attn/attn.h>

#include <attn/status.hpp>
#include <exception>
#include <new>
#include <string_view>

namespace attn::capi {

// Touches thread-local memory only if the status is not ok: a call that succeeds costs and allocates nothing.
attn_status_t report(const Status& status) noexcept;
attn_status_t report(StatusCode code, std::string_view message) noexcept;
[[nodiscard]] const char* last_error() noexcept;

// Runs a function that returns a Status.
template <class Function>
attn_status_t guarded(Function&& function) noexcept {
  try {
    return report(function());
  } catch (const std::bad_alloc&) {
    return report(StatusCode::kOutOfMemory, "no memory for the call");
  } catch (const std::exception& error) {
    return report(StatusCode::kInternal, error.what());
  } catch (...) {
    return report(StatusCode::kInternal, "an exception of unknown type");
  }
}

}  // namespace attn::capi
