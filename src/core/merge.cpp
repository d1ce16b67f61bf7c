// merge_partials: (O, LSE) pairs over disjoint sets of keys into one, by log-sum-exp in fp32.
// Tested in tests/unit/merge_test.cpp.
#include <attn/attn.hpp>
#include <cmath>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "core/numeric.hpp"
#include "core/refusal.hpp"
#include "core/validate_tensors.hpp"

namespace attn::inline v1 {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::int64_t row_offset(const TensorView& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return b * t.strides[0] + s * t.strides[1] + h * t.strides[2];
}
std::int64_t lse_offset(const TensorView& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return b * t.strides[0] + h * t.strides[1] + s * t.strides[2];
}

// One row's shares: which partials count and how much. Reads every LSE before anything is written, so that
// the outputs may be one of the partials.
struct Shares {
  std::vector<float> weight;  // per partial; of those that are not empty
  std::vector<bool> counts;
  std::size_t num_counting = 0;
  std::size_t last = 0;  // index of the last counting one
  float lse = kMinusInfinity;

  explicit Shares(std::size_t n) : weight(n), counts(n) {}

  void read(std::span<const Partial> partials, std::int64_t b, std::int64_t s, std::int64_t h) {
    num_counting = 0;
    float row_max = kMinusInfinity;
    for (std::size_t i = 0; i < partials.size(); ++i) {
      const TensorView& t = partials[i].lse;
      weight[i] = core::load_element(t.data, DType::kFloat32, lse_offset(t, b, s, h));
      counts[i] = weight[i] != kMinusInfinity;  // NaN counts, and spoils the row as it should
      if (counts[i]) {
        ++num_counting;
        last = i;
        row_max = std::isnan(weight[i]) || weight[i] > row_max ? weight[i] : row_max;
      }
    }
    if (num_counting <= 1) {
      lse = num_counting == 0 ? kMinusInfinity : weight[last];
      return;
    }
    float sum = 0.0F;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = counts[i] ? std::exp(weight[i] - row_max) : 0.0F;
      sum += weight[i];
    }
    for (float& w : weight) {
      w /= sum;
    }
    lse = row_max + std::log(sum);
  }
};

void merge_row(std::span<const Partial> partials, const Shares& shares, const TensorView& o, std::int64_t b,
               std::int64_t s, std::int64_t h) {
  const std::int64_t out = row_offset(o, b, s, h);
  for (std::int64_t c = 0; c < o.shape[3]; ++c) {
    float value = 0.0F;
    if (shares.num_counting == 1) {
      const TensorView& t = partials[shares.last].o;
      value = core::load_element(t.data, t.dtype, row_offset(t, b, s, h) + c);
    } else if (shares.num_counting > 1) {
      for (std::size_t i = 0; i < partials.size(); ++i) {
        if (shares.counts[i]) {
          const TensorView& t = partials[i].o;
          value += shares.weight[i] * core::load_element(t.data, t.dtype, row_offset(t, b, s, h) + c);
        }
      }
    }
    core::store_element(o.data, o.dtype, out + c, value);
  }
}

Status check_partials(std::span<const Partial> partials, const TensorView& o, const TensorView& lse) {
  if (partials.empty()) {
    return core::invalid("partials", "empty", "one or more");
  }
  ATTN_RETURN_IF_ERROR(core::check_tensor("o", o, o.dtype, o.shape, true));
  const std::array<std::int64_t, 4> lse_shape{o.shape[0], o.shape[2], o.shape[1], 1};
  if (lse.present()) {
    ATTN_RETURN_IF_ERROR(core::check_tensor("lse", lse, DType::kFloat32, lse_shape, true));
  }
  if (core::surely_overlap(o, lse)) {
    return core::invalid("lse", "in the memory of o", "memory of its own");
  }
  for (std::size_t i = 0; i < partials.size(); ++i) {
    const std::string name = "partials[" + std::to_string(i) + "].";
    ATTN_RETURN_IF_ERROR(core::check_tensor(name + "o", partials[i].o, partials[i].o.dtype, o.shape, false));
    ATTN_RETURN_IF_ERROR(
        core::check_tensor(name + "lse", partials[i].lse, DType::kFloat32, lse_shape, false));
    // A result may be exactly one of the partials: each row is read before it is written.
    const auto same = [](const TensorView& a, const TensorView& b) {
      return a.data == b.data && a.dtype == b.dtype && a.strides == b.strides;
    };
    const auto apart = [&](const char* result, const TensorView& written, const std::string& other,
                           const TensorView& read, bool may_be_same) {
      if (core::surely_overlap(written, read) && !(may_be_same && same(written, read))) {
        return core::invalid(result, "in the memory of " + other,
                             may_be_same ? "exactly that tensor, or memory of its own" : "memory of its own");
      }
      return Status{};
    };
    ATTN_RETURN_IF_ERROR(apart("o", o, name + "o", partials[i].o, true));
    ATTN_RETURN_IF_ERROR(apart("o", o, name + "lse", partials[i].lse, false));
    ATTN_RETURN_IF_ERROR(apart("lse", lse, name + "lse", partials[i].lse, true));
    ATTN_RETURN_IF_ERROR(apart("lse", lse, name + "o", partials[i].o, false));
  }
  return {};
}

}  // namespace

Status merge_partials(std::span<const Partial> partials, const TensorView& o, const TensorView& lse) {
  try {
    for (const std::int64_t n : o.shape) {
      ATTN_RETURN_IF_ERROR(core::check_range("o shape", n, 0, INT64_MAX));
    }
    ATTN_RETURN_IF_ERROR(check_partials(partials, o, lse));
    Shares shares(partials.size());
    for (std::int64_t b = 0; b < o.shape[0]; ++b) {
      for (std::int64_t s = 0; s < o.shape[1]; ++s) {
        for (std::int64_t h = 0; h < o.shape[2]; ++h) {
          shares.read(partials, b, s, h);
          merge_row(partials, shares, o, b, s, h);
          if (lse.present()) {
            core::store_element(lse.data, DType::kFloat32, lse_offset(lse, b, s, h), shares.lse);
          }
        }
      }
    }
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the merge"};
  }
}

}  // namespace attn::inline v1
