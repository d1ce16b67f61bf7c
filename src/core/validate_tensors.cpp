// Whether the tensors of a run fit its Problem: presence, dtype, shape, strides, alignment of elements,
// overlap. Lengths and page tables: validate_metadata.cpp. Nothing is written before all of it holds. Tested
// in tests/negative.
#include "core/validate_tensors.hpp"

#include <algorithm>
#include <array>
#include <attn/plan.hpp>
#include <cstdlib>
#include <string>

#include "core/geometry.hpp"
#include "core/limits.hpp"
#include "core/refusal.hpp"

namespace attn::core {

std::string shape_text(const std::array<std::int64_t, 4>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < 4; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + ")";
}

namespace {

constexpr const char* kAxes[4] = {"first", "second", "third", "last"};

// The span of offsets that the strides reach must be addressable; O and caches must not overlap themselves.
Status check_extent(const std::string& name, const TensorView& t) {
  std::int64_t reach = static_cast<std::int64_t>(size_of(t.dtype));
  for (std::size_t i = 0; i < 4; ++i) {
    std::int64_t bytes = 0;
    if (t.strides[i] == INT64_MIN || __builtin_mul_overflow(std::abs(t.strides[i]), t.shape[i] - 1, &bytes) ||
        __builtin_mul_overflow(bytes, static_cast<std::int64_t>(size_of(t.dtype)), &bytes) ||
        __builtin_add_overflow(reach, bytes, &reach)) {
      return invalid(name + " strides", shape_text(t.strides), "offsets that fit 63 bits in bytes");
    }
  }
  return {};
}

Status check_no_overlap(const std::string& name, const TensorView& t) {
  // Sorted by stride, each axis must step over all that the axes below it reach.
  std::array<std::size_t, 4> order{0, 1, 2, 3};
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::abs(t.strides[a]) < std::abs(t.strides[b]); });
  std::int64_t reach = 0;
  for (const std::size_t axis : order) {
    if (t.shape[axis] == 1) {
      continue;
    }
    const std::int64_t stride = std::abs(t.strides[axis]);
    if (stride <= reach) {
      return invalid(name + " strides", shape_text(t.strides),
                     "strides under which no two elements of this written tensor share an address; the " +
                         std::string(kAxes[axis]) + " axis does");
    }
    reach += stride * (t.shape[axis] - 1);
  }
  return {};
}

}  // namespace

Status check_tensor(const std::string& name, const TensorView& t, DType dtype,
                    const std::array<std::int64_t, 4>& shape, bool written) {
  // A dtype may come from the tensor itself (merge_partials), so its value is looked at too.
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
    return invalid(name + " dtype", static_cast<std::int64_t>(dtype), "0 (fp32), 1 (fp16), 2 (bf16)");
  }
  if (t.dtype != dtype) {
    return invalid(name + " dtype", std::string_view(to_string(t.dtype)), to_string(dtype));
  }
  if (t.shape != shape) {
    return invalid(name + " shape", shape_text(t.shape), shape_text(shape));
  }
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t n) { return n == 0; })) {
    return {};  // empty: no address is formed
  }
  if (!t.present()) {
    return invalid(name, "null", "the address of a tensor of shape " + shape_text(shape));
  }
  if (t.strides[3] != 1 && t.shape[3] > 1) {
    return invalid(name + " stride of its last axis", t.strides[3], "1: head_dim must be contiguous");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  if (address % size_of(dtype) != 0) {
    return invalid(name + " address", "no multiple of its element's size",
                   "a multiple of " + std::to_string(size_of(dtype)) + " bytes");
  }
  ATTN_RETURN_IF_ERROR(check_extent(name, t));
  return written ? check_no_overlap(name, t) : Status{};
}

namespace {

// The bytes from a tensor's lowest element to the end of its highest, and whether all of them are elements.
struct Extent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool dense = false;
};

Extent extent_of(const TensorView& t) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int64_t reach = t.strides[i] * (t.shape[i] - 1);
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(t.data);
  return {base + static_cast<std::uintptr_t>(low * size),
          base + static_cast<std::uintptr_t>((high + 1) * size), high - low + 1 == t.num_elements()};
}

bool is_empty(const TensorView& t) {
  return !t.present() || std::any_of(t.shape.begin(), t.shape.end(), [](std::int64_t n) { return n == 0; });
}

}  // namespace

bool surely_overlap(const TensorView& a, const TensorView& b) {
  if (is_empty(a) || is_empty(b)) {
    return false;
  }
  const Extent x = extent_of(a);
  const Extent y = extent_of(b);
  return a.data == b.data || (x.dense && y.dense && x.begin < y.end && y.begin < x.end);
}

namespace {

// A tensor that is written shares no memory with another of the call.
Status check_apart(const Problem& p, const Tensors& t) {
  struct Named {
    const char* name;
    const TensorView* view;
    bool written;
  };
  const bool append = p.seqlen_new > 0;
  const Named tensors[] = {{"o", &t.o, true},
                           {"lse", &t.lse, true},
                           {"k", &t.k, append},
                           {"v", &t.v, append},
                           {"q", &t.q, false},
                           {"k_new", &t.k_new, false},
                           {"v_new", &t.v_new, false},
                           {"rotary_cos", &t.rotary_cos, false},
                           {"rotary_sin", &t.rotary_sin, false}};
  for (const Named& written : tensors) {
    for (const Named& other : tensors) {
      if (written.written && written.view != other.view && surely_overlap(*written.view, *other.view)) {
        return invalid(written.name, std::string("in the memory of ") + other.name,
                       "memory that no other tensor of the call shares, since it is written");
      }
    }
  }
  return {};
}

// A plain array argument: there exactly if the problem says so.
Status check_array(const char* name, const void* data, bool wanted, const char* option) {
  if (wanted && data == nullptr) {
    return invalid(name, "null", std::string("an array, since ") + option + " is set");
  }
  if (!wanted && data != nullptr) {
    return invalid(name, "given", std::string("null, since ") + option + " is not set");
  }
  if (reinterpret_cast<std::uintptr_t>(data) % 4 != 0) {
    return invalid(std::string(name) + " address", "no multiple of 4", "a multiple of 4 bytes");
  }
  return {};
}

Status check_absent(const char* name, const TensorView& t, const char* option) {
  if (t.present()) {
    return invalid(name, "given", std::string("absent, since ") + option + " is not set");
  }
  return {};
}

Status validate_main_tensors(const Problem& p, const Tensors& t) {
  const std::int64_t qb = p.varlen_q ? 1 : p.batch;
  const std::int64_t qs = p.varlen_q ? p.total_q : p.seqlen_q;
  std::int64_t kb = p.varlen_kv ? 1 : p.batch;
  std::int64_t ks = p.varlen_kv ? p.total_kv : p.seqlen_kv;
  if (p.page_size > 0) {
    kb = p.num_pages;
    ks = p.page_size;
  }
  const bool append = p.seqlen_new > 0;
  ATTN_RETURN_IF_ERROR(check_tensor("q", t.q, p.dtype, {qb, qs, p.heads_q, p.head_dim_qk}, false));
  ATTN_RETURN_IF_ERROR(check_tensor("k", t.k, p.dtype, {kb, ks, p.heads_kv, p.head_dim_qk}, append));
  ATTN_RETURN_IF_ERROR(check_tensor("v", t.v, p.dtype, {kb, ks, p.heads_kv, p.head_dim_v}, append));
  ATTN_RETURN_IF_ERROR(check_tensor("o", t.o, p.dtype, {qb, qs, p.heads_q, p.head_dim_v}, true));
  if (p.want_lse) {
    return check_tensor("lse", t.lse, DType::kFloat32, {qb, p.heads_q, qs, 1}, true);
  }
  return check_absent("lse", t.lse, "want_lse");
}

Status validate_append_tensors(const Problem& p, const Tensors& t) {
  if (p.seqlen_new > 0) {
    ATTN_RETURN_IF_ERROR(
        check_tensor("k_new", t.k_new, p.dtype, {p.batch, p.seqlen_new, p.heads_kv, p.head_dim_qk}, false));
    ATTN_RETURN_IF_ERROR(
        check_tensor("v_new", t.v_new, p.dtype, {p.batch, p.seqlen_new, p.heads_kv, p.head_dim_v}, false));
  } else {
    ATTN_RETURN_IF_ERROR(check_absent("k_new", t.k_new, "seqlen_new"));
    ATTN_RETURN_IF_ERROR(check_absent("v_new", t.v_new, "seqlen_new"));
  }
  if (p.rotary_dim > 0) {
    for (const TensorView* table : {&t.rotary_cos, &t.rotary_sin}) {
      if (!table->present()) {
        return invalid(table == &t.rotary_cos ? "rotary_cos" : "rotary_sin", "null",
                       "a table of shape (1, positions, 1, " + std::to_string(p.rotary_dim / 2) +
                           "), since rotary_dim is set");
      }
    }
    ATTN_RETURN_IF_ERROR(check_range("rotary_cos positions", t.rotary_cos.shape[1], 1, kMaxLength));
    const std::array<std::int64_t, 4> shape{1, t.rotary_cos.shape[1], 1, p.rotary_dim / 2};
    ATTN_RETURN_IF_ERROR(check_tensor("rotary_cos", t.rotary_cos, DType::kFloat32, shape, false));
    return check_tensor("rotary_sin", t.rotary_sin, DType::kFloat32, shape, false);
  }
  ATTN_RETURN_IF_ERROR(check_absent("rotary_cos", t.rotary_cos, "rotary_dim"));
  return check_absent("rotary_sin", t.rotary_sin, "rotary_dim");
}

Status validate_arrays(const Problem& p, const Tensors& t) {
  ATTN_RETURN_IF_ERROR(check_array("cu_seqlens_q", t.cu_seqlens_q, p.varlen_q, "varlen_q"));
  ATTN_RETURN_IF_ERROR(check_array("cu_seqlens_kv", t.cu_seqlens_kv, p.varlen_kv, "varlen_kv"));
  if (p.batch > 0) {
    ATTN_RETURN_IF_ERROR(check_array("seqused_kv", t.seqused_kv, p.seqused_kv, "seqused_kv"));
  }
  const bool table_wanted = p.page_size > 0 && p.batch > 0 && p.seqlen_kv > 0;
  if (table_wanted || p.page_size == 0) {
    ATTN_RETURN_IF_ERROR(check_array("page_table", t.page_table, table_wanted, "page_size"));
  }
  if (table_wanted) {
    const std::int64_t entries = (p.seqlen_kv + p.page_size - 1) / p.page_size;
    // A stride of 0 shares one row of pages between all sequences.
    if (t.page_table_stride != 0 && t.page_table_stride < entries) {
      return invalid("page_table_stride", t.page_table_stride,
                     "0 or at least " + std::to_string(entries) + " entries, seqlen_kv / page_size");
    }
    if (t.page_table_stride > kMaxPageTableStride) {
      return invalid("page_table_stride", t.page_table_stride,
                     "at most " + std::to_string(kMaxPageTableStride));
    }
  }
  ATTN_RETURN_IF_ERROR(check_array("sinks", t.sinks, p.sinks, "sinks"));
  ATTN_RETURN_IF_ERROR(check_array("alibi_slopes", t.alibi_slopes, p.alibi, "alibi"));
  if (t.alibi_batch_stride != 0 &&
      (!p.alibi || t.alibi_batch_stride < p.heads_q || t.alibi_batch_stride > kMaxPageTableStride)) {
    return invalid("alibi_batch_stride", t.alibi_batch_stride,
                   p.alibi ? "0 (shared) or at least heads_q, " + std::to_string(p.heads_q)
                           : std::string("0, since alibi is not set"));
  }
  return {};
}

}  // namespace
}  // namespace attn::core

namespace attn::inline v1 {

Status validate(const Problem& p, const Tensors& t, bool metadata_on_host) {
  ATTN_RETURN_IF_ERROR(validate(p));
  ATTN_RETURN_IF_ERROR(core::validate_main_tensors(p, t));
  ATTN_RETURN_IF_ERROR(core::validate_append_tensors(p, t));
  ATTN_RETURN_IF_ERROR(core::validate_arrays(p, t));
  ATTN_RETURN_IF_ERROR(core::check_apart(p, t));
  return metadata_on_host ? core::validate_metadata(p, t) : Status{};
}

}  // namespace attn::inline v1
