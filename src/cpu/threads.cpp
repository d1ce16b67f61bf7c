// See threads.hpp.
#include "cpu/threads.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <system_error>
#include <thread>
#include <vector>

#include "core/env.hpp"
#include "cpu/cgroup.hpp"
#include "cpu/cpu_backend.hpp"

namespace attn::cpu {
namespace {

std::atomic<bool> g_forked{false};

// Registered when the library is loaded: whoever forks later, with or without exec, is noticed in the child.
const int g_registered = pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });

// CPUs that the scheduler may put this thread on; grows the mask for machines beyond 1024 CPUs.
int affinity_cpus() {
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (set == nullptr) {
      break;
    }
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const int failed = sched_getaffinity(0, bytes, set);
    const int count = failed == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (failed == 0) {
      return std::max(count, 1);
    }
  }
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

struct Limits {
  int affinity = 1;
  std::optional<double> quota;

  [[nodiscard]] int threads() const {
    const double cpus = quota.has_value() ? std::ceil(*quota) : affinity;
    return std::max(1, cpus < affinity ? static_cast<int>(cpus) : affinity);
  }
};

Limits limits() {
  return {affinity_cpus(), cpu_quota()};
}

}  // namespace

bool in_forked_child() noexcept {
  return g_registered != 0 || g_forked.load(std::memory_order_relaxed);
}

int thread_limit(int request) {
  const int threads = limits().threads();
  return request > 0 ? std::min(threads, request) : threads;
}

Status choose_threads(int request, ThreadChoice* choice) {
  const char* source = "requested";
  if (request <= 0) {
    const std::string text = core::read_env(core::Env::kNumThreads).value_or("");
    if (!text.empty()) {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), request);
      if (error != std::errc() || end != text.data() + text.size() || request < 1) {
        return {StatusCode::kInvalidArgument,
                fmt::format("ATTN_NUM_THREADS is {}; allowed: a whole number from 1 to 2147483647", text)};
      }
      source = "ATTN_NUM_THREADS";
    }
  }
  const Limits machine = limits();
  choice->threads = request > 0 ? std::min(machine.threads(), request) : machine.threads();
  choice->reason = fmt::format("CPU affinity {}, container quota {}, {}", machine.affinity,
                               machine.quota ? fmt::format("{:.2f}", *machine.quota) : "none",
                               request > 0 ? fmt::format("{} {}", source, request) : "no request");
  return {};
}

struct Team::Arena {
  // Not beyond what oneTBB allows the process: it would print a warning.
  explicit Arena(int threads)
      : arena(std::min(threads, static_cast<int>(tbb::global_control::active_value(
                                    tbb::global_control::max_allowed_parallelism)))) {
    arena.initialize();
  }
  tbb::task_arena arena;
};

Team::Team(int threads) {
  if (threads > 1 && !in_forked_child()) {
    arena_ = std::make_unique<Arena>(threads);
  }
}

Team::~Team() {
  if (in_forked_child()) {
    arena_
        .release();  // NOLINT(bugprone-unused-return-value): its workers do not exist here; leaked on purpose
  }
}

void Team::run(int workers, void (*body)(void*, int), void* context) const {
  if (workers <= 1) {
    for (int i = 0; i < workers; ++i) {
      body(context, i);
    }
    return;
  }
  if (arena_ != nullptr && !in_forked_child()) {
    arena_->arena.execute([&] {
      tbb::parallel_for(
          0, workers, [&](int i) { body(context, i); }, tbb::simple_partitioner());
    });
    return;
  }
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(workers - 1));
  int started = 1;  // worker 0 is the calling thread
  try {
    for (; started < workers; ++started) {
      threads.emplace_back(body, context, started);
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: the calling thread does the rest.
  }
  body(context, 0);
  for (int i = started; i < workers; ++i) {
    body(context, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace attn::cpu
