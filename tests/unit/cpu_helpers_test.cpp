// A call of n workers gets n threads, on a machine with few CPUs too: oneTBB is told of more before the first
// call, so this is a program of its own.
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cpu/threads.hpp"

namespace attn::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// Each worker waits until all are there, for 20 s at most: where one thread has to do two of them, they never
// are, and once one has waited in vain nobody waits any more.
struct Meeting {
  explicit Meeting(int n) : workers(n) {}
  const int workers;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
  std::atomic<int> there{0};
  std::atomic<int> most{0};
  std::atomic<bool> over{false};
};

void meet(void* context, int /*worker*/) {
  auto& meeting = *static_cast<Meeting*>(context);
  const int there = meeting.there.fetch_add(1) + 1;
  for (int most = meeting.most.load(); there > most && !meeting.most.compare_exchange_weak(most, there);) {
  }
  while (meeting.most.load() < meeting.workers && !meeting.over.load()) {
    std::this_thread::yield();
    if (Clock::now() > meeting.end) {
      meeting.over.store(true);
    }
  }
  meeting.there.fetch_sub(1);
}

TEST(CpuHelpers, AsManyComeAsACallHasWorkers) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 16);
  const Team team;
  for (const int workers : {2, 3, 4, 8, 16, 5, 16}) {
    Meeting meeting{workers};
    team.run(workers, &meet, &meeting);
    EXPECT_EQ(meeting.most.load(), workers) << "threads came to a call of " << workers << " workers";
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // helpers have gone: the next call wakes them
  }
}

}  // namespace
}  // namespace attn::cpu
