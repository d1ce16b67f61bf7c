// How many threads a plan may use, and the team that runs a plan's workers: oneTBB, or plain threads in a
// process that was forked (TBB's workers do not exist there). Tested in tests/unit/cpu_threads_test.cpp.
#pragma once

#include <attn/status.hpp>
#include <memory>
#include <string>

namespace attn::cpu {

struct ThreadChoice {
  int threads = 1;
  std::string reason;  // such as "2: CPU affinity 8, container quota 2.0"
};

// min(CPU affinity, container quota rounded up, request); request 0: ATTN_NUM_THREADS, else no request.
Status choose_threads(int request, ThreadChoice* choice);

class Team {
 public:
  // Up to `threads` workers at a time. Nothing of TBB is touched for a team of one.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls body(context, i) for each i in [0, workers), each once, on the calling thread and others; returns
  // when all are done. body must not throw and must not depend on running beside the others: on a busy
  // machine they may run one after another. Safe to call from several threads at once.
  void run(int workers, void (*body)(void* context, int worker), void* context) const;

 private:
  struct Arena;
  std::unique_ptr<Arena> arena_;
};

// Whether this process is a fork()ed child of the one that loaded the library.
[[nodiscard]] bool in_forked_child() noexcept;

}  // namespace attn::cpu
