// See threads.hpp.
#include "cpu/threads.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "core/env.hpp"
#include "cpu/cgroup.hpp"
#include "cpu/cpu_backend.hpp"

namespace attn::cpu {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> g_forked{false};

// Registered when the library is loaded: whoever forks later, with or without exec, is noticed in the child.
const int g_registered = pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });

// The CPUs that the scheduler may put this thread on, for machines of up to 16384 (Linux: 8192 at most). On
// the stack: a run allocates nothing.
struct Affinity {
  cpu_set_t sets[16] = {};
  bool known = sched_getaffinity(0, sizeof(sets), sets) == 0;

  [[nodiscard]] int count() const { return known ? CPU_COUNT_S(sizeof(sets), sets) : 0; }
};

int affinity_cpus() {
  const Affinity affinity;
  return affinity.known ? std::max(affinity.count(), 1)
                        : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// Moves this thread to another of the CPUs it may use, and leaves it as free as it was.
void leave_cpu(int cpu) {
  Affinity affinity;
  const auto index = static_cast<std::size_t>(cpu);
  if (affinity.count() < 2 || !CPU_ISSET_S(index, sizeof(affinity.sets), affinity.sets)) {
    return;
  }
  CPU_CLR_S(index, sizeof(affinity.sets), affinity.sets);
  (void)sched_setaffinity(0, sizeof(affinity.sets), affinity.sets);
  CPU_SET_S(index, sizeof(affinity.sets), affinity.sets);
  (void)sched_setaffinity(0, sizeof(affinity.sets), affinity.sets);
}

struct Limits {
  int affinity = 1;
  std::optional<double> quota;

  [[nodiscard]] int threads() const {
    const double cpus = quota.has_value() ? std::ceil(*quota) : affinity;
    return std::max(1, cpus < affinity ? static_cast<int>(cpus) : affinity);
  }
};

// The quota takes a dozen files to find and seldom changes, so it is looked up once a second at most. No
// mutex: a forked child must not wait for one.
std::optional<double> recent_cpu_quota() {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kFresh = std::chrono::nanoseconds(std::chrono::seconds(1)).count();
  constexpr double kNone = -1;
  static constinit std::atomic<std::int64_t> looked_up{kNever};
  static constinit std::atomic<double> found{kNone};
  const std::int64_t now = std::chrono::nanoseconds{Clock::now().time_since_epoch()}.count();
  const std::int64_t last = looked_up.load(std::memory_order_acquire);
  if (last == kNever || now - last >= kFresh) {
    found.store(cpu_quota().value_or(kNone), std::memory_order_relaxed);
    looked_up.store(now, std::memory_order_release);
  }
  const double quota = found.load(std::memory_order_relaxed);
  return quota == kNone ? std::nullopt : std::optional<double>(quota);
}

Limits limits() {
  return {affinity_cpus(), recent_cpu_quota()};
}

}  // namespace

bool in_forked_child() noexcept {
  return g_registered != 0 || g_forked.load(std::memory_order_relaxed);
}

int thread_limit(int request) {
  const int threads = limits().threads();
  return request > 0 ? std::min(threads, request) : threads;
}

Status request_threads(int threads, ThreadRequest* request) {
  *request = {threads, threads > 0 ? "requested" : ""};
  if (threads > 0) {
    return {};
  }
  const std::string text = core::read_env(core::Env::kNumThreads).value_or("");
  if (text.empty()) {
    return {};
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), request->threads);
  if (error != std::errc() || end != text.data() + text.size() || request->threads < 1) {
    return {StatusCode::kInvalidArgument,
            fmt::format("ATTN_NUM_THREADS is {}; allowed: a whole number from 1 to 2147483647", text)};
  }
  request->source = "ATTN_NUM_THREADS";
  return {};
}

Status choose_threads(int threads, ThreadChoice* choice) {
  ThreadRequest request;
  if (Status status = request_threads(threads, &request); !status.ok()) {
    return status;
  }
  const Limits machine = limits();
  const int most = machine.threads();
  choice->threads = request.threads > 0 ? std::min(most, request.threads) : most;
  choice->patient = !machine.quota.has_value() || *machine.quota >= machine.affinity;
  choice->reason =
      fmt::format("CPU affinity {}, container quota {}, {}", machine.affinity,
                  machine.quota ? fmt::format("{:.2f}", *machine.quota) : "none",
                  request.threads > 0 ? fmt::format("{} {}", request.source, request.threads) : "no request");
  return {};
}

namespace {

// How long a helper looks for the next call before it gives its thread back to oneTBB, and a caller for the
// end of its helpers before it sleeps. A thread that sleeps takes 20 to 50 µs to be there again, and its
// waker 5 µs (virtual machine, 2 CPUs); the gaps between a call's phases, between calls one after another,
// and between the last tasks of a short call are shorter than this.
constexpr auto kPatience = std::chrono::microseconds(100);
constexpr std::size_t kSlots = 8;  // calls that helpers serve at the same time; further ones do without
constexpr int kSummoned = 2;       // helpers that one thread calls; each of them calls as many again

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `done` came within kPatience of looking.
template <class Function>
bool watch(const Function& done) {
  constexpr int kLooks = 16;  // between two of the clock
  for (const Clock::time_point end = Clock::now() + kPatience; Clock::now() < end;) {
    for (int i = 0; i < kLooks; ++i) {
      if (done()) {
        return true;
      }
      pause();
    }
  }
  return false;
}

// One call's work, to be taken index by index by whoever comes. Indices beyond kMostWorkers are the caller's.
class alignas(64) Slot {
 public:
  static constexpr int kWords = 4;
  static constexpr int kMostWorkers = 64 * kWords;

  bool occupy() { return !occupied_.load(std::memory_order_relaxed) && !occupied_.exchange(true); }

  void publish(int workers, void (*body)(void*, int), void* context) {
    workers_ = workers;
    body_ = body;
    context_ = context;
    finished_.store(0, std::memory_order_relaxed);
    for (int word = kWords - 1; word >= 0; --word) {  // the caller is 0 and opens the first word last
      const int here = std::clamp(workers - 64 * word, 0, 64);
      const std::uint64_t none = here == 64 ? 0 : ~std::uint64_t{0} << here;
      taken_[word].store(word == 0 ? none | 1 : none, std::memory_order_release);
    }
  }

  // Takes the index `wish` if the call has it and nobody else. What an index belongs to stays until finish():
  // one that is taken late belongs to the call that is there then.
  bool take(int wish) {
    const std::uint64_t bit = std::uint64_t{1} << wish % 64;
    std::atomic<std::uint64_t>& word = taken_[wish / 64];
    return (word.load(std::memory_order_relaxed) & bit) == 0 &&
           (word.fetch_or(bit, std::memory_order_acq_rel) & bit) == 0;
  }
  // An index that nobody has, or 0: none is left.
  int take_any() {
    for (int n = 0; n < kWords; ++n) {
      std::uint64_t taken = taken_[n].load(std::memory_order_relaxed);
      while (~taken != 0) {
        const std::uint64_t bit = ~taken & (taken + 1);
        if (taken_[n].compare_exchange_weak(taken, taken | bit, std::memory_order_acq_rel,
                                            std::memory_order_relaxed)) {
          return 64 * n + std::countr_zero(bit);
        }
      }
    }
    return 0;
  }
  [[nodiscard]] bool all_taken() const {
    return std::all_of(std::begin(taken_), std::end(taken_), [](const std::atomic<std::uint64_t>& taken) {
      return ~taken.load(std::memory_order_relaxed) == 0;
    });
  }
  void work(int index) const { body_(context_, index); }
  // Whoever has taken an index: how many helpers the call is to have, or 0 if all its indices are taken. Not
  // how many are free: those who have one count among the helpers that are there.
  [[nodiscard]] int wanted() const { return all_taken() ? 0 : workers_ - 1; }
  void finish() {
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }

  // The caller: when `helped` indices that others took are done, the slot is free.
  void release(int helped) {
    const auto done = [&] { return finished_.load(std::memory_order_acquire) == helped; };
    if (!done() && !watch(done)) {
      for (int seen = finished_.load(std::memory_order_acquire); seen != helped;
           seen = finished_.load(std::memory_order_acquire)) {
        finished_.wait(seen);
      }
    }
    occupied_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<std::uint64_t> taken_[kWords] = {~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0},
                                               ~std::uint64_t{0}};  // a bit an index
  std::atomic<int> finished_{0};
  std::atomic<bool> occupied_{false};
  int workers_ = 0;
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
};

// The process's helpers: tasks in an arena of oneTBB, whose threads they hold as long as calls follow each
// other. Never destroyed, as helpers may be under way when the process ends.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): cache lines are kept apart
class Crew {
 public:
  static Crew& instance() {
    static Crew& crew = *new Crew;  // NOLINT(cppcoreguidelines-owning-memory)
    return crew;
  }

  void run(int workers, bool patient, void (*body)(void*, int), void* context) {
    Slot* slot = nullptr;
    for (std::size_t i = 0; i < kSlots && slot == nullptr; ++i) {
      slot = slots_[i].occupy() ? &slots_[i] : nullptr;
    }
    if (slot == nullptr) {
      for (int i = 0; i < workers; ++i) {
        body(context, i);
      }
      return;
    }
    patient_.store(patient, std::memory_order_relaxed);
    caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
    slot->publish(workers, body, context);
    published_.fetch_add(1, std::memory_order_release);
    summon(workers - 1);
    body(context, 0);
    int own = 1;
    for (int index = slot->take_any(); index > 0; index = slot->take_any()) {
      body(context, index);
      ++own;
    }
    for (int index = Slot::kMostWorkers; index < workers; ++index) {
      body(context, index);
      ++own;
    }
    slot->release(workers - own);
  }

 private:
  // Not beyond what oneTBB allows the process when the first call needs a thread: it would print a warning.
  Crew()
      : most_(static_cast<int>(
                  tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism)) -
              1),
        arena_(std::max(most_, 1), 0) {
    // A helper may begin after its call, and the caller's dlclose: the library stays.
    Dl_info info;
    if (dladdr(&g_forked, &info) != 0 && info.dli_fname != nullptr) {
      (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
  }

  // Calls helpers, kSummoned at most, while there are fewer than `wanted`.
  void summon(int wanted) {
    int there = helpers_.load(std::memory_order_relaxed);
    int called = 0;
    while (called < kSummoned && there < std::min(wanted, most_)) {
      if (!helpers_.compare_exchange_weak(there, there + 1, std::memory_order_relaxed)) {
        continue;
      }
      try {
        arena_.enqueue([this] { help(); });
      } catch (...) {  // no memory: the caller does the work
        helpers_.fetch_sub(1, std::memory_order_relaxed);
        return;
      }
      ++called;
      ++there;
    }
    if (called > 0) {
      sched_yield();  // to a helper that was woken on this CPU: see help()
    }
  }

  void help() {
    // After some milliseconds of sleep a helper is often woken on its caller's own CPU, and stays there
    // beside an idle one until the system balances its load, for longer than a short call takes (2 CPUs,
    // Linux 6: 12 heads of 128 rows took as long as on one thread).
    if (const int cpu = sched_getcpu(); cpu >= 0 && cpu == caller_cpu_.load(std::memory_order_relaxed)) {
      leave_cpu(cpu);
    }
    // The index of last time, where the call has it: so a thread meets the scratch and the tasks of last
    // time. (One that had to look for another index comes later than those whose own are there: on 16 CPUs no
    // index of calls of 4 to 16 workers moved, whatever the number that watched.)
    static std::atomic<int> threads{0};
    thread_local int wish = threads.fetch_add(1, std::memory_order_relaxed) % (Slot::kMostWorkers - 1) + 1;
    do {
      const std::uint32_t seen = published_.load(std::memory_order_acquire);
      for (Slot& slot : slots_) {
        int index = slot.take(wish) ? wish : 0;
        if (index == 0) {
          index = slot.take_any();
          wish = index > 0 ? index : wish;
        }
        for (; index > 0; index = slot.take_any()) {
          summon(slot.wanted());
          slot.work(index);
          slot.finish();
        }
      }
      const auto published = [&] { return published_.load(std::memory_order_relaxed) != seen; };
      if (!published() && !(patient_.load(std::memory_order_relaxed) && watch(published))) {
        break;
      }
    } while (true);
    helpers_.fetch_sub(1, std::memory_order_relaxed);
  }

  const int most_;
  tbb::task_arena arena_;
  alignas(64) std::atomic<std::uint32_t> published_{0};
  alignas(64) std::atomic<int> helpers_{0};  // called or here
  std::atomic<bool> patient_{true};          // as the last call said
  std::atomic<int> caller_cpu_{-1};          // where the last call was made
  Slot slots_[kSlots];
};

}  // namespace

void Team::run(int workers, void (*body)(void*, int), void* context) const {
  if (workers <= 1) {
    for (int i = 0; i < workers; ++i) {
      body(context, i);
    }
    return;
  }
  if (!in_forked_child()) {
    Crew::instance().run(workers, patient_, body, context);
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
