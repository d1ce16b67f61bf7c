// How many threads a plan may use, and the team that runs a plan's workers: the calling thread and helpers on
// oneTBB's threads, which stay for 100 µs after a call and serve the next without being woken; plain threads
// in a process that was forked (TBB's do not exist there). Tested in tests/unit/cpu_threads_test.cpp.
#pragma once

#include <attn/status.hpp>
#include <string>

namespace attn::cpu {

struct ThreadChoice {
  int threads = 1;
  bool patient = true;  // a container's quota does not count the time that helpers wait
  std::string reason;   // such as "2: CPU affinity 8, container quota 2.0"
};

struct ThreadRequest {
  int threads = 0;          // 0: none
  const char* source = "";  // whose
};

// The caller's, or that of ATTN_NUM_THREADS where it is 0. Only this can be refused: a plan asks for it when
// it asks whether the problem can be computed, and looks at the machine once, by choose_threads.
Status request_threads(int threads, ThreadRequest* request);

// min(CPU affinity, container quota rounded up, request).
Status choose_threads(int threads, ThreadChoice* choice);

class Team {
 public:
  // patient: helpers wait for the next call in a loop for a while.
  explicit Team(bool patient = true) : patient_(patient) {}

  // Calls body(context, i) for each i in [0, workers), each once, on the calling thread and others; returns
  // when all are done. body must not throw and must not depend on running beside the others: on a busy
  // machine they may run one after another. Safe to call from several threads at once, and by a body.
  // Nothing of TBB is touched for one worker.
  void run(int workers, void (*body)(void* context, int worker), void* context) const;

 private:
  bool patient_;
};

// Whether this process is a fork()ed child of the one that loaded the library.
[[nodiscard]] bool in_forked_child() noexcept;

}  // namespace attn::cpu
