// Building the memory of a case: metadata, who owns each row, layouts, values. Contract: buffers.hpp.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/numeric.hpp"
#include "verify/buffers.hpp"
#include "verify/data.hpp"
#include "verify/random.hpp"

namespace attn::verify {
namespace {

using Shape = std::array<std::int64_t, 4>;

constexpr std::uint64_t kStreamPages = 103;  // of random.hpp

float poison_value(Poison poison, DType dtype) {
  switch (poison) {
    case Poison::kNaN:
      return std::numeric_limits<float>::quiet_NaN();
    case Poison::kInf:
      return std::numeric_limits<float>::infinity();
    case Poison::kHuge:
      return dtype == DType::kFloat16 ? 65504.0F : 3e38F;
    case Poison::kZero:
      break;
  }
  return 0.0F;
}

}  // namespace

// Whose row a physical row of Q, K or V is; b < 0: nobody's, or one that must have no influence.
struct Owner {
  std::int64_t b = -1;
  std::int64_t pos = 0;
};

class BufferBuilder {
 public:
  explicit BufferBuilder(Buffers& buffers)
      : out_(buffers), c_(buffers.case_), p_(buffers.case_.problem), t_(buffers.tensors_), values_(c_) {}
  void build();

 private:
  // Lengths of a sequence: queries, and keys before and after an append.
  [[nodiscard]] std::int64_t len_q(std::int64_t b) const { return p_.varlen_q ? c_.lens_q[b] : p_.seqlen_q; }
  [[nodiscard]] std::int64_t len_kv_before(std::int64_t b) const {
    return p_.varlen_kv || p_.seqused_kv ? c_.lens_kv[b] : p_.seqlen_kv;
  }
  [[nodiscard]] std::int64_t len_kv(std::int64_t b) const { return len_kv_before(b) + p_.seqlen_new; }

  void build_metadata();
  void build_page_table();
  void build_owners();
  void mark_keys(std::int64_t b);
  void build_main_tensors();
  void build_append();
  void build_extras();

  Shape strides_for(const Shape& n, bool is_input, bool is_kv) const;
  TensorView allocate(const std::string& name, DType dtype, const Shape& shape, const Shape& strides,
                      bool output);
  void allocate_interleaved(const Shape& q, const Shape& k, const Shape& v);
  std::int32_t* allocate_ints(const std::string& name, std::size_t count);
  float* allocate_floats(const std::string& name, std::size_t count);
  void fill(const TensorView& t, Which which, const std::vector<Owner>& owners);
  void fill_poison(const TensorView& t);

  Buffers& out_;
  const Case& c_;
  const Problem& p_;
  Tensors& t_;
  Values values_;
  std::vector<Owner> q_owners_;
  std::vector<Owner> kv_owners_;
  std::int64_t kv_axis1_ = 0;  // rows of K along its seqlen axis
};

Shape compact(const Shape& n, const std::array<std::size_t, 3>& order, std::int64_t pad, std::int64_t gap) {
  Shape strides{0, 0, 0, 1};
  std::int64_t next = n[3] + pad;
  for (const std::size_t axis : order) {
    strides[axis] = next;
    next = next * n[axis] + gap;
  }
  return strides;
}

Shape BufferBuilder::strides_for(const Shape& n, bool is_input, bool is_kv) const {
  constexpr std::array<std::size_t, 3> kHeadsFirst{2, 1, 0};  // innermost first: heads, seqlen, batch
  constexpr std::array<std::size_t, 3> kSeqlenFirst{1, 2, 0};
  Shape s = compact(n, kHeadsFirst, 0, 0);
  switch (c_.layout) {
    case Layout::kBshd:
    case Layout::kInterleaved:
      break;
    case Layout::kBhsd:
      s = compact(n, kSeqlenFirst, 0, 0);
      break;
    case Layout::kPadded:
      s = compact(n, kHeadsFirst, 1, 0);
      break;
    case Layout::kPitch:
      s = compact(n, kHeadsFirst, 8, 0);
      break;
    case Layout::kGaps:
      if (!is_input) {
        s = compact(n, kHeadsFirst, 3, 5);
      }
      break;
    case Layout::kNegative:
      if (is_input) {
        s[1] = -s[1];
        s[2] = -s[2];
      }
      break;
    case Layout::kBroadcastQ:
      if (is_input && !is_kv) {
        s = {0, 0, 0, 1};
      }
      break;
    case Layout::kBroadcastBatch:
    case Layout::kBroadcastHeads:
    case Layout::kBroadcastKeys: {
      if (is_kv) {
        const std::size_t axis = c_.layout == Layout::kBroadcastBatch   ? 0
                                 : c_.layout == Layout::kBroadcastHeads ? 2
                                                                        : 1;
        Shape reduced = n;
        reduced[axis] = 1;
        s = compact(reduced, kHeadsFirst, 0, 0);
        s[axis] = 0;
      }
      break;
    }
    case Layout::kUnit:
      for (std::size_t axis = 0; axis < 4; ++axis) {
        if (n[axis] == 1) {
          s[axis] = axis % 2 == 0 ? 1234567890123 : -77;
        }
      }
      break;
  }
  return s;
}

TensorView BufferBuilder::allocate(const std::string& name, DType dtype, const Shape& shape,
                                   const Shape& strides, bool output) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::int64_t low = 0;
  std::int64_t high = 0;
  bool empty = false;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    empty = empty || shape[axis] == 0;
    const std::int64_t reach = shape[axis] > 0 ? strides[axis] * (shape[axis] - 1) : 0;
    (reach < 0 ? low : high) += reach;
  }
  const std::int64_t elements = empty ? 0 : high - low + 1;
  out_.blocks_.emplace_back(name, static_cast<std::size_t>((c_.offset + elements) * size), output);
  std::byte* payload = out_.blocks_.back().payload();
  TensorView view{payload + (c_.offset - (empty ? 0 : low)) * size, dtype, shape, strides};
  const bool is_output_only = name == "o" || name == "lse";
  const std::uint32_t bits = Buffers::poison_bits(dtype);
  for (std::int64_t i = 0; i < c_.offset + elements; ++i) {
    if (is_output_only) {
      std::memcpy(payload + i * size, &bits, static_cast<std::size_t>(size));
    } else {
      core::store_element(payload, dtype, i, poison_value(c_.poison, dtype));
    }
  }
  return view;
}

// One buffer of rows [Q heads | K heads | V heads], or of [K heads | V heads] where Q has other rows.
void BufferBuilder::allocate_interleaved(const Shape& q, const Shape& k, const Shape& v) {
  const bool with_q = q[0] == k[0] && q[1] == k[1];
  const std::int64_t q_row = with_q ? q[2] * q[3] : 0;
  const std::int64_t k_row = k[2] * k[3];
  const std::int64_t pitch = q_row + k_row + v[2] * v[3];
  const TensorView whole = allocate(with_q ? "qkv" : "kv", p_.dtype, {k[0], k[1], 1, pitch},
                                    {k[1] * pitch, pitch, pitch, 1}, p_.seqlen_new > 0);
  const auto part = [&](const Shape& n, std::int64_t at) {
    auto* data = static_cast<std::byte*>(whole.data) + at * static_cast<std::int64_t>(size_of(p_.dtype));
    return TensorView{data, p_.dtype, n, {k[1] * pitch, pitch, n[3], 1}};
  };
  t_.q = with_q ? part(q, 0) : allocate("q", p_.dtype, q, strides_for(q, true, false), false);
  t_.k = part(k, q_row);
  t_.v = part(v, q_row + k_row);
}

std::int32_t* BufferBuilder::allocate_ints(const std::string& name, std::size_t count) {
  out_.blocks_.emplace_back(name, count * 4, false);
  return reinterpret_cast<std::int32_t*>(out_.blocks_.back().payload());
}

float* BufferBuilder::allocate_floats(const std::string& name, std::size_t count) {
  out_.blocks_.emplace_back(name, count * 4, false);
  return reinterpret_cast<float*>(out_.blocks_.back().payload());
}

void BufferBuilder::build_metadata() {
  const auto batch = static_cast<std::size_t>(p_.batch);
  if (p_.varlen_q) {
    std::int32_t* cu = allocate_ints("cu_seqlens_q", batch + 1);
    cu[0] = 0;
    for (std::size_t b = 0; b < batch; ++b) {
      cu[b + 1] = cu[b] + static_cast<std::int32_t>(c_.lens_q[b]);
    }
    t_.cu_seqlens_q = cu;
  }
  if (p_.varlen_kv) {
    // With seqused as well, what total_kv leaves over becomes room behind the sequences, front ones first.
    std::int64_t spare = p_.total_kv - std::accumulate(c_.lens_kv.begin(), c_.lens_kv.end(), std::int64_t{0});
    std::int32_t* cu = allocate_ints("cu_seqlens_kv", batch + 1);
    cu[0] = 0;
    for (std::size_t b = 0; b < batch; ++b) {
      const std::int64_t room = p_.seqused_kv ? std::clamp<std::int64_t>(p_.seqlen_kv - c_.lens_kv[b], 0,
                                                                         std::min<std::int64_t>(spare, 2))
                                              : 0;
      spare -= room;
      cu[b + 1] = cu[b] + static_cast<std::int32_t>(c_.lens_kv[b] + room);
    }
    t_.cu_seqlens_kv = cu;
  }
  if (p_.seqused_kv && batch > 0) {
    std::int32_t* used = allocate_ints("seqused_kv", batch);
    for (std::size_t b = 0; b < batch; ++b) {
      used[b] = static_cast<std::int32_t>(c_.lens_kv[b]);
    }
    t_.seqused_kv = used;
  }
}

// Pages in random order; unused entries hold what no pool has. The first shared_pages pages of a sequence are
// sequence 0's, where both have them full before an append.
void BufferBuilder::build_page_table() {
  const std::int64_t entries = (p_.seqlen_kv + p_.page_size - 1) / p_.page_size;
  if (p_.batch == 0 || entries == 0) {
    return;
  }
  t_.page_table_stride = entries + 1;
  std::int32_t* table =
      allocate_ints("page_table", static_cast<std::size_t>(p_.batch * t_.page_table_stride));
  t_.page_table = table;
  for (std::int64_t n = 0; n < p_.batch * t_.page_table_stride; ++n) {
    table[n] = c_.poison == Poison::kZero ? 0 : n % 2 == 0 ? -1 : std::numeric_limits<std::int32_t>::max();
  }
  std::vector<std::int32_t> pool(static_cast<std::size_t>(p_.num_pages));
  std::iota(pool.begin(), pool.end(), 0);
  Draws draws(c_.seed, kStreamPages);
  for (std::size_t n = pool.size(); n > 1; --n) {
    std::swap(pool[n - 1],
              pool[static_cast<std::size_t>(draws.between(0, static_cast<std::int64_t>(n) - 1))]);
  }
  std::size_t next = 0;
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    const std::int64_t used = (len_kv(b) + p_.page_size - 1) / p_.page_size;
    for (std::int64_t e = 0; e < used; ++e) {
      const bool shared = b > 0 && e < c_.shared_pages &&
                          (e + 1) * p_.page_size <= std::min(len_kv_before(0), len_kv_before(b));
      if (!shared && next == pool.size()) {
        throw std::invalid_argument("case: pages=" + std::to_string(p_.num_pages) +
                                    " is fewer than the sequences use");
      }
      table[b * t_.page_table_stride + e] = shared ? table[e] : pool[next++];
    }
  }
}

// Marks the physical rows of the keys of sequence b that exist before an append and that some query sees.
void BufferBuilder::mark_keys(std::int64_t b) {
  const std::int64_t sq = len_q(b);
  const std::int64_t off = p_.alignment == Alignment::kBottomRight ? len_kv(b) - sq : 0;
  std::int64_t first = 0;
  std::int64_t last = len_kv_before(b) - 1;
  if (p_.window_left >= 0 && p_.window_left < off) {
    first = off - p_.window_left;
  }
  const std::int64_t right =
      p_.causal ? (p_.window_right < 0 ? 0 : std::min<std::int64_t>(0, p_.window_right)) : p_.window_right;
  if (right >= 0 && right < last) {
    last = std::min(last, sq - 1 + off + right);
  }
  if (sq == 0 && c_.layout != Layout::kBroadcastBatch) {
    return;
  }
  for (std::int64_t j = first; j <= last; ++j) {
    std::int64_t row = 0;
    if (p_.page_size > 0) {
      row = t_.page_table[b * t_.page_table_stride + j / p_.page_size] * p_.page_size + j % p_.page_size;
      if (kv_owners_[static_cast<std::size_t>(row)].b >= 0) {
        continue;  // a shared page holds sequence 0's keys
      }
    } else {
      row = p_.varlen_kv ? t_.cu_seqlens_kv[b] + j : b * kv_axis1_ + j;
    }
    kv_owners_[static_cast<std::size_t>(row)] = {b, j};
  }
}

void BufferBuilder::build_owners() {
  const std::int64_t kb = p_.page_size > 0 ? p_.num_pages : p_.varlen_kv ? 1 : p_.batch;
  kv_axis1_ = p_.page_size > 0 ? p_.page_size : p_.varlen_kv ? p_.total_kv : p_.seqlen_kv;
  kv_owners_.resize(static_cast<std::size_t>(kb * kv_axis1_));
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    mark_keys(b);
  }
  q_owners_.resize(static_cast<std::size_t>(p_.varlen_q ? p_.total_q : p_.batch * p_.seqlen_q));
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    const std::int64_t begin = p_.varlen_q ? t_.cu_seqlens_q[b] : b * p_.seqlen_q;
    for (std::int64_t i = 0; i < len_q(b); ++i) {
      q_owners_[static_cast<std::size_t>(begin + i)] = {b, i};
    }
  }
}

void BufferBuilder::fill(const TensorView& t, Which which, const std::vector<Owner>& owners) {
  if (t.num_elements() == 0) {
    return;
  }
  // A row shared by all batch entries or all keys is one row: nothing of it is poison.
  const bool one_for_all = (t.strides[0] == 0 && t.shape[0] > 1) || (t.strides[1] == 0 && t.shape[1] > 1);
  std::vector<float> row(static_cast<std::size_t>(t.shape[3]));
  const auto steps = [&](std::size_t axis) { return t.strides[axis] == 0 ? 1 : t.shape[axis]; };
  for (std::int64_t a = 0; a < steps(0); ++a) {
    for (std::int64_t s = 0; s < steps(1); ++s) {
      Owner owner = owners[static_cast<std::size_t>(a * t.shape[1] + s)];
      if (one_for_all) {
        owner = {a, s};
      }
      for (std::int64_t h = 0; h < steps(2) && owner.b >= 0; ++h) {
        values_.row(which, {owner.b, h, owner.pos}, t.shape[3], row.data());
        const std::int64_t at = a * t.strides[0] + s * t.strides[1] + h * t.strides[2];
        for (std::int64_t n = 0; n < t.shape[3]; ++n) {
          core::store_element(t.data, t.dtype, at + n, row[static_cast<std::size_t>(n)]);
        }
      }
    }
  }
}

void BufferBuilder::build_main_tensors() {
  const std::int64_t qb = p_.varlen_q ? 1 : p_.batch;
  const std::int64_t qs = p_.varlen_q ? p_.total_q : p_.seqlen_q;
  const std::int64_t kb = p_.page_size > 0 ? p_.num_pages : p_.varlen_kv ? 1 : p_.batch;
  const Shape q{qb, qs, p_.heads_q, p_.head_dim_qk};
  const Shape k{kb, kv_axis1_, p_.heads_kv, p_.head_dim_qk};
  const Shape v{kb, kv_axis1_, p_.heads_kv, p_.head_dim_v};
  const bool append = p_.seqlen_new > 0;
  if (c_.layout == Layout::kInterleaved) {
    allocate_interleaved(q, k, v);
  } else {
    t_.q = allocate("q", p_.dtype, q, strides_for(q, true, false), false);
    t_.k = allocate("k", p_.dtype, k, strides_for(k, true, true), append);
    t_.v = allocate("v", p_.dtype, v, strides_for(v, true, true), append);
  }
  fill(t_.q, Which::kQ, q_owners_);
  fill(t_.k, Which::kK, kv_owners_);
  fill(t_.v, Which::kV, kv_owners_);

  const Shape o{qb, qs, p_.heads_q, p_.head_dim_v};
  t_.o = allocate("o", p_.dtype, o, strides_for(o, false, false), true);
  if (p_.want_lse) {
    const Shape n{qb, p_.heads_q, qs, 1};  // batch, heads, seqlen
    Shape s{n[1] * n[2], n[2], 1, 1};
    switch (c_.layout) {
      case Layout::kBhsd:
        s = {n[1] * n[2], 1, n[1], 1};
        break;
      case Layout::kPadded:
      case Layout::kPitch:
        s = {n[1] * (n[2] + 1), n[2] + 1, 1, 1};
        break;
      case Layout::kGaps:
        s = {n[1] * (2 * n[2] + 3) + 7, 2 * n[2] + 3, 2, 1};
        break;
      case Layout::kUnit:
        for (std::size_t axis = 0; axis < 3; ++axis) {
          s[axis] = n[axis] == 1 ? 1234567890123 : s[axis];
        }
        break;
      default:
        break;
    }
    t_.lse = allocate("lse", DType::kFloat32, n, s, true);
  }
}

void BufferBuilder::build_append() {
  if (p_.seqlen_new == 0) {
    return;
  }
  const Shape k{p_.batch, p_.seqlen_new, p_.heads_kv, p_.head_dim_qk};
  const Shape v{p_.batch, p_.seqlen_new, p_.heads_kv, p_.head_dim_v};
  t_.k_new = allocate("k_new", p_.dtype, k, strides_for(k, true, false), false);
  t_.v_new = allocate("v_new", p_.dtype, v, strides_for(v, true, false), false);
  std::vector<Owner> owners;
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    for (std::int64_t n = 0; n < p_.seqlen_new; ++n) {
      owners.push_back({b, len_kv_before(b) + n});
    }
  }
  fill(t_.k_new, Which::kK, owners);
  fill(t_.v_new, Which::kV, owners);
  if (p_.rotary_dim > 0) {
    const std::int64_t positions = std::max(p_.seqlen_kv, p_.seqlen_q);
    const std::int64_t pairs = p_.rotary_dim / 2;
    float* cos = allocate_floats("rotary_cos", static_cast<std::size_t>(positions * pairs));
    float* sin = allocate_floats("rotary_sin", static_cast<std::size_t>(positions * pairs));
    for (std::int64_t n = 0; n < positions * pairs; ++n) {
      values_.rotation(n / pairs, n % pairs, &cos[n], &sin[n]);
    }
    t_.rotary_cos = TensorView::bshd(cos, DType::kFloat32, 1, positions, 1, pairs);
    t_.rotary_sin = TensorView::bshd(sin, DType::kFloat32, 1, positions, 1, pairs);
  }
}

void BufferBuilder::build_extras() {
  if (p_.sinks) {
    float* sinks = allocate_floats("sinks", static_cast<std::size_t>(p_.heads_q));
    for (std::int64_t h = 0; h < p_.heads_q; ++h) {
      sinks[h] = values_.sink(h);
    }
    t_.sinks = sinks;
  }
  if (p_.alibi) {
    const bool by_batch = c_.slopes == Slopes::kBatch;
    const std::int64_t entries = by_batch ? p_.batch : 1;
    float* slopes = allocate_floats("alibi_slopes", static_cast<std::size_t>(entries * p_.heads_q));
    for (std::int64_t n = 0; n < entries * p_.heads_q; ++n) {
      slopes[n] = values_.slope(n / p_.heads_q, n % p_.heads_q);
    }
    t_.alibi_slopes = slopes;
    t_.alibi_batch_stride = by_batch ? p_.heads_q : 0;
  }
}

void BufferBuilder::build() {
  build_metadata();
  if (p_.page_size > 0) {
    build_page_table();
  }
  build_owners();
  build_main_tensors();
  build_append();
  build_extras();
  out_.seal();
}

Buffers::Buffers(Case c) : case_(std::move(c)) {
  BufferBuilder(*this).build();
}
}  // namespace attn::verify
