// Mutexes and fork. A child of fork has a copy of a mutex and not of the thread that may hold it; so who
// forks waits for it and takes it along. Tested in tests/unit/forward_test.cpp (children of fork while other
// threads call).
#pragma once

#include <pthread.h>

#include <mutex>

namespace attn::core {

// Once for a namespace-scope mutex that no other such mutex is taken under:
//   [[maybe_unused]] const int g_registered = core::held_over_fork<g_mutex>();
template <std::mutex& kMutex>
int held_over_fork() noexcept {
  return pthread_atfork([] { kMutex.lock(); }, [] { kMutex.unlock(); }, [] { kMutex.unlock(); });
}

}  // namespace attn::core
