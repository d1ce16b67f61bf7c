// The generator behind every case: counter-based, so that element n of a tensor depends only on (seed,
// stream, n), and made of integer operations and IEEE +, ·, /, √ alone, so that every machine makes the same
// bits. Tested in tests/numerics/random_test.cpp.
#pragma once

#include <cstdint>

namespace attn::verify {

// SplitMix64's output function (Steele, Lea, Flood 2014; constants of Stafford's mix 13).
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// 64 random bits for (seed, stream, counter).
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream,
                                                  std::uint64_t counter) noexcept {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
  return mix64(mix64(mix64(seed + kGolden) + stream * kGolden) + (counter + 1) * kGolden);
}

// Uniform in (0, 1), 52 bits.
[[nodiscard]] constexpr double random_uniform(std::uint64_t seed, std::uint64_t stream,
                                              std::uint64_t counter) noexcept {
  return (static_cast<double>(random_bits(seed, stream, counter) >> 12) + 0.5) * 0x1p-52;
}

// Standard normal: the inverse of its distribution function (Wichura, AS 241, PPND7, relative error 1e-7).
[[nodiscard]] double normal_quantile(double p) noexcept;
[[nodiscard]] inline double random_normal(std::uint64_t seed, std::uint64_t stream,
                                          std::uint64_t counter) noexcept {
  return normal_quantile(random_uniform(seed, stream, counter));
}

// A sequence of draws for making cases.
class Draws {
 public:
  explicit Draws(std::uint64_t seed, std::uint64_t stream = 0) noexcept : seed_(seed), stream_(stream) {}
  [[nodiscard]] std::uint64_t bits() noexcept { return random_bits(seed_, stream_, counter_++); }
  // In [low, high], both included.
  [[nodiscard]] std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(bits() % span);
  }
  // True once in `n` draws on average.
  [[nodiscard]] bool one_in(std::uint64_t n) noexcept { return bits() % n == 0; }
  template <typename T, std::size_t N>
  [[nodiscard]] T pick(const T (&values)[N]) noexcept {
    return values[bits() % N];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
};

}  // namespace attn::verify
