// Derived facts of a Problem. Tested in tests/unit/problem_test.cpp.
#include <attn/problem.hpp>
#include <cmath>

namespace attn::inline v1 {

float Problem::scale() const noexcept {
  if (softmax_scale.has_value()) {
    return *softmax_scale;
  }
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_qk)));
}

bool Problem::needs_alignment() const noexcept {
  return causal || window_left >= 0 || window_right >= 0 || alibi || rotary_dim > 0;
}

}  // namespace attn::inline v1
