// See tile_runner.hpp. Elements that the packed products must not meet, or would take for something else;
// rare, so plain code, element by element, for the rows and keys concerned alone: no bit of any other row
// changes.
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/numeric.hpp"
#include "cpu/tile_runner.hpp"

namespace attn::cpu {
namespace {

// Below it the product with a probability of more than 2⁻²⁶ may be flushed to zero by bf16 tile products.
constexpr float kLeastTileValue = 0x1p-100F;

}  // namespace

// Only with bf16_tiles.
float TaskRunner::packed_query(const Block& b, int row, int channel) const {
  const int step = channel / kAmxStep;
  const std::int64_t at = (static_cast<std::int64_t>(step) * b.padded + row) * kAmxStep + channel % kAmxStep;
  return core::load_element(packed_queries(b), DType::kBFloat16, at);
}

// As the product with V takes it; row: of the block.
float TaskRunner::probability(int row, int key) const {
  const float* p = s_ + row * kScoreStride;
  return kernels_.bf16_tiles ? core::load_element(p, DType::kBFloat16, key) : p[key];
}

bool TaskRunner::unfit(float v) const {
  const bool tiny = kernels_.bf16_tiles && v != 0.0F && std::abs(v) < kLeastTileValue;
  return tiny || !std::isfinite(v);
}

void TaskRunner::clear_v(int key, int column) {
  const std::int64_t tile = plan_.tile_keys;
  if (kernels_.bf16_tiles) {
    const std::int64_t pair = column / kAmxStep * (tile / 2) + key / 2;
    const std::int64_t at = (pair * kAmxStep + column % kAmxStep) * 2 + key % 2;
    core::store_element(v_, DType::kBFloat16, at, 0.0F);
    return;
  }
  const std::int64_t lanes = kernels_.lanes;
  const std::int64_t vectors = plan_.o_stride / lanes;
  const std::int64_t vector = column / lanes;
  const std::int64_t panel = vector / 2;
  const std::int64_t width = (vectors - panel * 2 >= 2 ? 2 : 1) * lanes;
  v_[panel * tile * 2 * lanes + key * width + vector % 2 * lanes + column % lanes] = 0.0F;
}

void TaskRunner::flag_queries(const Block& b) {
  for (int row = 0; row < b.count; ++row) {
    for (int c = 0; c < problem_.head_dim_qk; ++c) {
      if (std::fpclassify(packed_query(b, row, c)) == FP_SUBNORMAL) {
        rows_[b.first + row].subnormal_query = true;
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
      const float k = core::load_element(k_rows_[key], problem_.dtype, c);
      inexact_key_[key] = std::fpclassify(k) == FP_SUBNORMAL;
    }
  }
}

// Scores of the queries and keys that hold subnormal elements.
void TaskRunner::rescore(const Block& b, int begin, int end) {
  for (int row = 0; row < b.count; ++row) {
    for (int key = begin; key < end; ++key) {
      if (!rows_[b.first + row].subnormal_query && !(inexact_keys_ && inexact_key_[key])) {
        continue;
      }
      double sum = 0;
      for (int c = 0; c < problem_.head_dim_qk; ++c) {
        sum += static_cast<double>(packed_query(b, row, c)) *
               core::load_element(k_rows_[key], problem_.dtype, c);
      }
      s_[row * kScoreStride + key] = static_cast<float>(sum * factor_);
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
      if (unfit(core::load_element(v_rows_[key], problem_.dtype, c))) {
        clear_v(key, c);
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
    std::uint32_t mask[kMaxHeadDimCpu];  // all ones where the value is unfit
    for (int c = 0; c < dim; ++c) {
      values[c] = core::load_element(v_rows_[key], problem_.dtype, c);
      mask[c] = unfit(values[c]) ? UINT32_MAX : 0;
    }
    for (int row = 0; row < b.count; ++row) {
      if (key < tile_begin(b.first + row, base) || key >= tile_end(b.first + row, base)) {
        continue;
      }
      const float p = probability(row, key);
      float* __restrict__ o = o_ + static_cast<std::ptrdiff_t>(b.first + row) * plan_.o_stride;
      for (int c = 0; c < dim; ++c) {
        const auto with = std::bit_cast<std::uint32_t>(o[c] + p * values[c]);
        const auto without = std::bit_cast<std::uint32_t>(o[c]);
        o[c] = std::bit_cast<float>((with & mask[c]) | (without & ~mask[c]));
      }
    }
  }
}

}  // namespace attn::cpu
