// The values of a case's tensors as a function of logical coordinates, so that no layout, page order or
// packing changes them. Contract: Data in case.hpp. Tested in tests/conformance/buffers_test.cpp.
#pragma once

#include <cstdint>

#include "verify/case.hpp"

namespace attn::verify {

class Values {
 public:
  explicit Values(const Case& c);
  // Fills `count` values of a row, before rounding to the dtype.
  void row(Which which, const RowId& id, std::int64_t count, float* out) const;

  [[nodiscard]] float sink(std::int64_t h) const;
  [[nodiscard]] float slope(std::int64_t b, std::int64_t h) const;
  // A rotation by an angle drawn for (position, pair), from a rational parametrisation: no libm.
  void rotation(std::int64_t position, std::int64_t pair, float* cos, float* sin) const;

 private:
  void q_row(const RowId& id, std::int64_t count, float* out) const;
  void k_row(const RowId& id, std::int64_t count, float* out) const;
  void v_row(const RowId& id, std::int64_t count, float* out) const;
  void normal(Which which, const RowId& id, std::int64_t count, float* out) const;
  void spoil(Which which, const RowId& id, std::int64_t count, float* out) const;

  Data data_;
  Slopes slopes_;
  Sinks sinks_;
  DType dtype_;
  std::uint64_t seed_;
  std::int64_t seqlen_q_;
  std::int64_t seqlen_kv_;
  std::int64_t heads_q_;
  std::int64_t heads_kv_;
  std::int64_t sink_key_;
  float root_d_;  // √head_dim_qk
};

}  // namespace attn::verify
