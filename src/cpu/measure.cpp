// What this machine can do, measured: the rates that `attn bench` divides by.
// Tested in tests/unit/cpu_levels_test.cpp.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cpu/cpu_backend.hpp"
#include "cpu/levels.hpp"

namespace attn::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double measure_fma_peak_gflops(const std::string& level, double seconds) {
  const KernelTable* kernels = kernels_of(level);
  if (kernels == nullptr) {
    return 0;
  }
  // Slices of about 2 ms; the fastest counts, since others may hold the core during some.
  constexpr double kSlice = 2e-3;
  std::int64_t rounds = 1000;
  double best = 0;
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::time_point start = Clock::now();
    const double per_round = kernels->fma_rounds(rounds);
    const double elapsed = seconds_since(start);
    best = std::max(best, per_round * static_cast<double>(rounds) / elapsed * 1e-9);
    if (elapsed < kSlice) {
      rounds *= 2;
    }
  } while (seconds_since(begin) < seconds);
  return best;
}

double measure_stream_gbs(int threads, double seconds) {
  // Far beyond any cache together, and 64 MiB a thread at least.
  constexpr std::size_t kTotal = std::size_t{512} << 20;
  constexpr std::size_t kLeast = std::size_t{64} << 20;
  const auto workers = static_cast<std::size_t>(std::max(threads, 1));
  const std::size_t words = std::max(kTotal / workers, kLeast) / sizeof(std::uint64_t);
  std::vector<double> rates(workers, 0.0);
  std::atomic<std::size_t> ready{0};
  std::atomic<std::uint64_t> keep{0};
  const auto body = [&](std::size_t worker) {
    const std::vector<std::uint64_t> data(words, worker + 1);  // written here: its pages are this thread's
    ready.fetch_add(1);
    while (ready.load() < workers) {
      std::this_thread::yield();
    }
    const Clock::time_point start = Clock::now();
    std::size_t passes = 0;
    std::uint64_t sum = 0;
    do {
      sum += std::accumulate(data.begin(), data.end(), std::uint64_t{0});
      ++passes;
    } while (seconds_since(start) < seconds);
    rates[worker] = static_cast<double>(passes * words * sizeof(std::uint64_t)) / seconds_since(start) * 1e-9;
    keep.fetch_add(sum);
  };
  std::vector<std::thread> team;
  for (std::size_t worker = 1; worker < workers; ++worker) {
    team.emplace_back(body, worker);
  }
  body(0);
  for (std::thread& thread : team) {
    thread.join();
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace attn::cpu
