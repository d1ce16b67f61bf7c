// See tile_runner.hpp. Elements that the packed products must not meet, or would take for something else;
// rare, so plain code, for the rows and keys concerned alone: no bit of any other row changes. Small values
// go through the products in a tile of their own, all else element by element.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/numeric.hpp"
#include "cpu/tile_runner.hpp"

namespace attn::cpu {
namespace {

bool fits(const Fit& fit, float x) {
  return x == 0.0F || (std::abs(x) >= fit.least && std::abs(x) <= fit.most);
}

double dot(const float* __restrict__ a, const float* __restrict__ b, std::size_t count) {
  constexpr std::size_t kChains = 8;  // side by side, for the vector units
  double sums[kChains] = {};
  std::size_t i = 0;
  for (; i + kChains <= count; i += kChains) {
    for (std::size_t n = 0; n < kChains; ++n) {
      sums[n] += static_cast<double>(a[i + n]) * b[i + n];
    }
  }
  for (std::size_t n = 0; i < count; ++i, ++n) {
    sums[n] += static_cast<double>(a[i]) * b[i];
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// o += p · v where the mask is set, without a branch; low, where there is one, keeps what rounding lost.
void add_masked(float p, const float* v, const std::uint32_t* mask, int dim, float* __restrict__ o,
                float* __restrict__ low) {
  const auto masked = [&](float x, int c) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & mask[c]);
  };
  for (int c = 0; c < dim; ++c) {
    const float before = o[c];
    const auto with = std::bit_cast<std::uint32_t>(before + p * v[c]);
    o[c] = std::bit_cast<float>((with & mask[c]) | (std::bit_cast<std::uint32_t>(before) & ~mask[c]));
    if (low != nullptr) {
      low[c] += masked(p * v[c] - (o[c] - before), c);  // means nothing where o is not finite
    }
  }
}

}  // namespace

void TaskRunner::flag_queries(const Block& b) {
  for (int row = 0; row < b.count; ++row) {
    load_query(b.first + row, q_row_);
    for (int c = 0; c < problem_.head_dim_qk; ++c) {
      if (!fits(kernels_.fit_qk, q_row_[c])) {
        rows_[b.first + row].unfit_query = true;
        inexact_queries_ = true;
        break;
      }
    }
  }
}

void TaskRunner::flag_keys(int begin, int end) {
  for (int key = begin; key < end; ++key) {
    inexact_key_[key] = false;
    for (std::int64_t c = 0; c < problem_.head_dim_qk && !inexact_key_[key]; ++c) {
      inexact_key_[key] = !fits(kernels_.fit_qk, core::load_element(k_rows_[key], problem_.dtype, c));
    }
  }
}

// Scores of the queries and keys that hold elements which do not fit.
void TaskRunner::rescore(const Block& b, int begin, int end) {
  const auto dim = static_cast<std::size_t>(problem_.head_dim_qk);
  float queries[kMaxBlockRows][kMaxHeadDimCpu];  // those that some key is multiplied with
  for (int row = 0; row < b.count; ++row) {
    if (inexact_keys_ || rows_[b.first + row].unfit_query) {
      load_query(b.first + row, queries[row]);
    }
  }
  float k[kMaxHeadDimCpu];
  for (int key = begin; key < end; ++key) {
    const bool every_row = inexact_keys_ && inexact_key_[key];
    if (!every_row && !inexact_queries_) {
      continue;
    }
    kernels_.to_float(k_rows_[key], problem_.dtype, dim, k);
    for (int row = 0; row < b.count; ++row) {
      if (every_row || rows_[b.first + row].unfit_query) {
        s_[row * kScoreStride + key] = static_cast<float>(dot(queries[row], k, dim) * factor_);
      }
    }
  }
}

// Small values have a tile of their own (split_v), and each row sums of their own for them: o_small_, in
// units of 1 / kSmallScale. A row that sees none gets products with 0 alone, +0 in all, which add_small
// leaves out: so no bit of it depends on whether its neighbours see some, or on when the task met the first.
void TaskRunner::begin_small() {
  sums_small_ = true;
  const Block last = block(num_blocks_ - 1);
  const std::size_t bytes =
      static_cast<std::size_t>((last.first + last.padded) * plan_.o_stride) * sizeof(float);
  std::memset(o_small_, 0, bytes);
  if (kernels_.keeps_low) {
    std::memset(o_small_low_, 0, bytes);
  }
}

void TaskRunner::accumulate_small(const Block& b, const float* rescale, int begin, int end) {
  const auto stride = static_cast<int>(plan_.o_stride);
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(b.first) * stride;
  if (small_) {
    kernels_.accumulate(
        {s_, b.padded, panel_floor(begin), end, rescale, o_small_ + at, o_small_low_ + at, stride}, v_small_,
        static_cast<int>(plan_.tile_keys), static_cast<int>(problem_.head_dim_v));
    return;
  }
  const auto scale = [&](float* sums) {
    for (int row = 0; row < b.count; ++row) {
      float* of_row = sums + at + static_cast<std::ptrdiff_t>(row) * stride;
      std::transform(of_row, of_row + stride, of_row, [by = rescale[row]](float x) { return x * by; });
    }
  };
  scale(o_small_);
  if (kernels_.keeps_low) {
    scale(o_small_low_);
  }
}

// The sums of small values into O. By doubles, in which nothing of this is subnormal: an operation on floats
// that are takes some 100 cycles, a conversion does not.
void TaskRunner::add_small(int row) {
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * plan_.o_stride;
  for (std::ptrdiff_t c = at; c < at + problem_.head_dim_v; ++c) {
    double sum = o_small_[c];
    sum += kernels_.keeps_low ? o_small_low_[c] : 0.0;
    if (sum != 0 && std::isfinite(o_[c])) {
      sum = sum * (1.0 / kSmallScale) + o_[c];
      sum += kernels_.keeps_low ? o_low_[c] : 0.0;
      o_[c] = static_cast<float>(sum);
      if (kernels_.keeps_low) {
        o_low_[c] = static_cast<float>(sum - o_[c]);
      }
    }
  }
}

// Rule 6 for packed V: 0 · NaN is NaN, so a row that does not see a key must not meet what is not finite in
// it. Zeros stand in for such elements; rows that do see the key get them afterwards (add_poison). So no bit
// of the other rows depends on what stands in a key that they do not see.
void TaskRunner::replace_poison(int begin, int end) {
  for (int key = begin; key < end; ++key) {
    poison_[key] = false;
    for (int c = 0; c < problem_.head_dim_v; ++c) {
      if (!(std::abs(core::load_element(v_rows_[key], problem_.dtype, c)) <= kernels_.most_v)) {
        kernels_.clear_v(v_, static_cast<int>(plan_.tile_keys), static_cast<int>(problem_.head_dim_v), key,
                         c);
        poison_[key] = true;
      }
    }
  }
}

void TaskRunner::add_poison(const Block& b, std::int64_t base, int begin, int end) {
  const auto dim = static_cast<int>(problem_.head_dim_v);
  for (int key = begin; key < end; ++key) {
    if (!poison_[key]) {
      continue;
    }
    // Read once for all rows, and added without a branch: V may be full of NaN.
    float values[kMaxHeadDimCpu];
    std::uint32_t mask[kMaxHeadDimCpu];  // all ones where the value is poison
    for (int c = 0; c < dim; ++c) {
      values[c] = core::load_element(v_rows_[key], problem_.dtype, c);
      mask[c] = std::abs(values[c]) <= kernels_.most_v ? 0 : UINT32_MAX;
    }
    for (int row = 0; row < b.count; ++row) {
      if (key < tile_begin(b.first + row, base) || key >= tile_end(b.first + row, base)) {
        continue;
      }
      const float p = kernels_.probability(s_, row, key);
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(b.first + row) * plan_.o_stride;
      add_masked(p, values, mask, dim, o_ + at, kernels_.keeps_low ? o_low_ + at : nullptr);
    }
  }
}

}  // namespace attn::cpu
