// The judge, by the words of docs/contract.md: one row at a time, every key looked at, float64 throughout.
// Tested in tests/unit/reference_test.cpp.
#include "reference/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.hpp"

namespace attn::reference {
namespace {

// Where sequence b lies and how long it is (rules 2, 9), read from the metadata anew.
struct Lengths {
  std::int64_t q_row = 0;   // first row of the sequence along the seqlen axis of Q, O
  std::int64_t kv_row = 0;  // … of K, V
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_kv = 0;  // appended keys included
  std::int64_t off = 0;
};

Lengths lengths_of(const Problem& p, const Tensors& t, std::int64_t b) {
  Lengths n;
  n.seqlen_q = p.seqlen_q;
  n.seqlen_kv = p.seqlen_kv;
  if (p.varlen_q) {
    n.q_row = t.cu_seqlens_q[b];
    n.seqlen_q = t.cu_seqlens_q[b + 1] - t.cu_seqlens_q[b];
  }
  if (p.varlen_kv) {
    n.kv_row = t.cu_seqlens_kv[b];
    n.seqlen_kv = t.cu_seqlens_kv[b + 1] - t.cu_seqlens_kv[b];
  }
  if (p.seqused_kv) {
    n.seqlen_kv = t.seqused_kv[b] + p.seqlen_new;
  }
  if (p.alignment == Alignment::kBottomRight) {
    n.off = n.seqlen_kv - n.seqlen_q;
  }
  return n;
}

// Element offset of channel 0 of key j of sequence b, key/value head h.
std::int64_t kv_offset(const Problem& p, const Tensors& t, const TensorView& kv, const Lengths& n,
                       std::int64_t b, std::int64_t j, std::int64_t h) {
  if (p.page_size > 0) {
    const std::int64_t page = t.page_table[b * t.page_table_stride + j / p.page_size];
    return page * kv.strides[0] + (j % p.page_size) * kv.strides[1] + h * kv.strides[2];
  }
  const std::int64_t batch = p.varlen_kv ? 0 : b;
  return batch * kv.strides[0] + (n.kv_row + j) * kv.strides[1] + h * kv.strides[2];
}

// Rules 2 and 3, one key at a time.
bool visible(const Problem& p, const Lengths& n, std::int64_t i, std::int64_t j) {
  const __int128 position = static_cast<__int128>(i) + n.off;  // windows may be as wide as int64
  if (p.causal && j > position) {
    return false;
  }
  if (p.window_left >= 0 && j < position - p.window_left) {
    return false;
  }
  return p.window_right < 0 || j <= position + p.window_right;
}

// One row of rotary_dim leading channels, in place, at a position (rule 9). The arithmetic is the
// definition: two products and their sum, each rounded to fp32, then the result rounded to the dtype.
void rotate(const Problem& p, const Tensors& t, std::int64_t position, std::vector<float>* row) {
  const std::int64_t half = p.rotary_dim / 2;
  for (std::int64_t c = 0; c < half; ++c) {
    const bool interleaved = p.rotary_style == RotaryStyle::kInterleaved;
    float& a = (*row)[static_cast<std::size_t>(interleaved ? 2 * c : c)];
    float& b = (*row)[static_cast<std::size_t>(interleaved ? 2 * c + 1 : c + half)];
    const float cos = core::load_element(t.rotary_cos.data, DType::kFloat32,
                                         position * t.rotary_cos.strides[1] + c * t.rotary_cos.strides[3]);
    const float sin = core::load_element(t.rotary_sin.data, DType::kFloat32,
                                         position * t.rotary_sin.strides[1] + c * t.rotary_sin.strides[3]);
    const float a_cos = a * cos;
    const float b_sin = b * sin;
    const float a_sin = a * sin;
    const float b_cos = b * cos;
    a = core::round_to(p.dtype, a_cos - b_sin);
    b = core::round_to(p.dtype, a_sin + b_cos);
  }
}

std::vector<float> load_row(const TensorView& t, std::int64_t offset, std::int64_t n) {
  std::vector<float> row(static_cast<std::size_t>(n));
  for (std::int64_t c = 0; c < n; ++c) {
    row[static_cast<std::size_t>(c)] = core::load_element(t.data, t.dtype, offset + c);
  }
  return row;
}

// scale · (q · k), then softcap, then ALiBi (rule 1). Also adds to the magnitude that rounding is measured
// against: |scale| · Σ |q_c k_c| and the bias itself.
double logit(const Problem& p, const Tensors& t, const Lengths& n, std::int64_t b, std::int64_t h,
             std::int64_t i, std::int64_t j, const std::vector<float>& q, std::int64_t k_offset,
             double* magnitude) {
  double dot = 0;
  double absolute = 0;
  for (std::size_t c = 0; c < q.size(); ++c) {
    const double product =
        static_cast<double>(q[c]) *
        static_cast<double>(core::load_element(t.k.data, t.k.dtype, k_offset + static_cast<std::int64_t>(c)));
    dot += product;
    absolute += std::abs(product);
  }
  const double scale = p.scale();
  double s = scale * dot;
  *magnitude = std::abs(scale) * absolute;
  if (p.softcap > 0.0F) {
    s = p.softcap * std::tanh(s / p.softcap);
  }
  if (p.alibi) {
    const double slope = t.alibi_slopes[b * t.alibi_batch_stride + h];
    const double bias = slope * static_cast<double>(j - i - n.off);
    s += bias;
    *magnitude += std::abs(bias);
  }
  return s;
}

}  // namespace

Row forward_row(const Problem& p, const Tensors& t, std::int64_t b, std::int64_t h, std::int64_t i,
                double* o) {
  const Lengths n = lengths_of(p, t, b);
  const std::int64_t kv_head = h / (p.heads_q / p.heads_kv);
  const std::int64_t q_batch = p.varlen_q ? 0 : b;
  std::vector<float> q = load_row(
      t.q, q_batch * t.q.strides[0] + (n.q_row + i) * t.q.strides[1] + h * t.q.strides[2], p.head_dim_qk);
  if (p.rotary_dim > 0) {
    rotate(p, t, n.off + i, &q);
  }

  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  Row row;
  std::vector<std::int64_t> keys;
  std::vector<double> logits;
  double row_max = kMinusInfinity;
  bool any_nan = false;
  for (std::int64_t j = 0; j < n.seqlen_kv; ++j) {
    if (!visible(p, n, i, j)) {
      continue;
    }
    double magnitude = 0;
    const double s = logit(p, t, n, b, h, i, j, q, kv_offset(p, t, t.k, n, b, j, kv_head), &magnitude);
    keys.push_back(j);
    logits.push_back(s);
    row.logit_error = std::max(row.logit_error, magnitude);
    row_max = std::max(row_max, s);
    any_nan = any_nan || std::isnan(s);
  }
  row.visible = static_cast<std::int64_t>(keys.size());

  const double sink = p.sinks ? static_cast<double>(t.sinks[h]) : kMinusInfinity;
  const double key_max = row_max;
  row_max = std::max(row_max, sink);
  any_nan = any_nan || std::isnan(sink);
  std::fill_n(o, p.head_dim_v, 0.0);
  // Rules 4 and 7: nothing to see, or nothing but −inf.
  if (row_max == kMinusInfinity && !any_nan) {
    row.lse = kMinusInfinity;
    return row;
  }
  double sum = 0;
  for (std::size_t n_key = 0; n_key < keys.size(); ++n_key) {
    const double weight =
        any_nan ? std::numeric_limits<double>::quiet_NaN() : std::exp(logits[n_key] - row_max);
    sum += weight;
    const std::int64_t v_offset = kv_offset(p, t, t.v, n, b, keys[n_key], kv_head);
    for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
      const double v = core::load_element(t.v.data, t.v.dtype, v_offset + c);
      o[c] += weight * v;
      row.max_abs_v = std::max(row.max_abs_v, std::abs(v));
    }
  }
  const double with_sink = sum + (p.sinks ? std::exp(sink - row_max) : 0.0);
  for (std::int64_t c = 0; c < p.head_dim_v; ++c) {
    o[c] /= with_sink;
  }
  if (any_nan) {
    row.lse = std::numeric_limits<double>::quiet_NaN();
  } else if (p.lse_with_sink) {
    row.lse = row_max + std::log(with_sink);
  } else if (key_max == kMinusInfinity) {
    row.lse = kMinusInfinity;
  } else {
    // From the keys' own maximum: a sink far above them must not make their sum vanish.
    double key_sum = 0;
    for (const double s : logits) {
      key_sum += std::exp(s - key_max);
    }
    row.lse = key_max + std::log(key_sum);
  }
  return row;
}

void append(const Problem& p, const Tensors& t) {
  for (std::int64_t b = 0; b < p.batch && p.seqlen_new > 0; ++b) {
    const Lengths n = lengths_of(p, t, b);
    for (std::int64_t j = 0; j < p.seqlen_new; ++j) {
      const std::int64_t position = t.seqused_kv[b] + j;
      for (std::int64_t h = 0; h < p.heads_kv; ++h) {
        const auto new_offset = [&](const TensorView& x) {
          return b * x.strides[0] + j * x.strides[1] + h * x.strides[2];
        };
        std::vector<float> k = load_row(t.k_new, new_offset(t.k_new), p.head_dim_qk);
        const std::size_t unrotated = static_cast<std::size_t>(p.rotary_dim);
        if (p.rotary_dim > 0) {
          rotate(p, t, position, &k);
        }
        // What is not rotated is copied as bytes: a NaN keeps its payload.
        const std::int64_t k_out = kv_offset(p, t, t.k, n, b, position, h);
        const auto size = static_cast<std::int64_t>(size_of(p.dtype));
        for (std::size_t c = 0; c < k.size(); ++c) {
          const auto channel = static_cast<std::int64_t>(c);
          if (c < unrotated) {
            core::store_element(t.k.data, p.dtype, k_out + channel, k[c]);
          } else {
            std::memcpy(static_cast<char*>(t.k.data) + (k_out + channel) * size,
                        static_cast<const char*>(t.k_new.data) + (new_offset(t.k_new) + channel) * size,
                        size_of(p.dtype));
          }
        }
        const std::int64_t v_out = kv_offset(p, t, t.v, n, b, position, h);
        std::memcpy(static_cast<char*>(t.v.data) + v_out * size,
                    static_cast<const char*>(t.v_new.data) + new_offset(t.v_new) * size,
                    static_cast<std::size_t>(p.head_dim_v) * size_of(p.dtype));
      }
    }
  }
}

}  // namespace attn::reference
