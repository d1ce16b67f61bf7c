// The normal quantile from IEEE basic operations alone. Contract: random.hpp.
#include "verify/random.hpp"

#include <bit>
#include <cmath>

namespace attn::verify {
namespace {

// Natural logarithm of a normal number in (0, 1): x = m · 2ᵉ with m in [√½, √2), log m = 2
// artanh((m−1)/(m+1)). std::log would do, but its last bit differs between C libraries. Error below 1e-15.
double log_exact(double x) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1.0) / (m + 1.0);  // |t| ≤ 0.172, so that t²⁰ / 21 is below 1e-16
  const double t2 = t * t;
  double series = 0.0;
  for (int n = 21; n >= 1; n -= 2) {
    series = series * t2 + 1.0 / n;
  }
  return 2.0 * t * series + exponent * 0.69314718055994530942;
}

}  // namespace

// Coefficients: Wichura, Algorithm AS 241, Applied Statistics 37 (1988), PPND7.
double normal_quantile(double p) noexcept {
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((5.9109374720e+1 * r + 1.5929113202e+2) * r + 5.0434271938e+1) * r + 3.3871327179e+0) /
           (((6.7187563600e+1 * r + 7.8757757664e+1) * r + 1.7895169469e+1) * r + 1.0);
  }
  double r = std::sqrt(-log_exact(q < 0.0 ? p : 1.0 - p));
  double x = 0.0;
  if (r <= 5.0) {
    r -= 1.6;
    x = (((1.7023821103e-1 * r + 1.3067284816e+0) * r + 2.7568153900e+0) * r + 1.4234372777e+0) /
        ((1.2021132975e-1 * r + 7.3700164250e-1) * r + 1.0);
  } else {
    r -= 5.0;
    x = (((1.7337203997e-2 * r + 4.2868294337e-1) * r + 3.0812263860e+0) * r + 6.6579051150e+0) /
        ((1.2258202635e-2 * r + 2.4197894225e-1) * r + 1.0);
  }
  return q < 0.0 ? -x : x;
}

}  // namespace attn::verify
