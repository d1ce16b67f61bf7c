// Whether the tensors of a run fit its Problem: presence, dtype, shape, strides, alignment of elements, and,
// where the metadata is host memory, every length and page id. Nothing is written before all of it holds.
// Tested in tests/negative.
#include "core/validate_tensors.hpp"

#include <algorithm>
#include <array>
#include <attn/plan.hpp>
#include <bitset>
#include <cstdlib>
#include <string>

#include "core/geometry.hpp"
#include "core/limits.hpp"
#include "core/refusal.hpp"

namespace attn::core {
namespace {

std::string shape_text(const std::array<std::int64_t, 4>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < 4; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + ")";
}

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

Status check_cu_seqlens(const std::string& name, const std::int32_t* cu, std::int64_t batch,
                        std::int64_t total, std::int64_t max_length, const std::string& max_name) {
  if (cu[0] != 0) {
    return invalid(name + "[0]", cu[0], "0");
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = static_cast<std::int64_t>(cu[b + 1]) - cu[b];
    // Names are made only where they are needed: a run that is right allocates nothing.
    const auto at = [&] { return name + "[" + std::to_string(b + 1) + "]"; };
    if (length < 0) {
      return invalid(at(), cu[b + 1], "at least the entry before it, " + std::to_string(cu[b]));
    }
    if (length > max_length) {
      return invalid("length of sequence " + std::to_string(b) + " in " + name, length,
                     "at most " + max_name + ", " + std::to_string(max_length));
    }
    if (cu[b + 1] > total) {
      return invalid(at(), cu[b + 1], "at most the packed tensor's rows, " + std::to_string(total));
    }
  }
  return {};
}

Status check_sequence(const Problem& p, const Tensors& t, std::int64_t b) {
  const auto index = [&] { return "[" + std::to_string(b) + "]"; };
  if (p.seqused_kv) {
    const std::int64_t room =
        p.varlen_kv ? static_cast<std::int64_t>(t.cu_seqlens_kv[b + 1]) - t.cu_seqlens_kv[b] : p.seqlen_kv;
    if (t.seqused_kv[b] < 0 || t.seqused_kv[b] > room - p.seqlen_new) {
      return check_range("seqused_kv" + index(), t.seqused_kv[b], 0, room - p.seqlen_new);
    }
  }
  const Sequence s = sequence_of(p, t, b);
  if (p.page_size > 0) {
    const std::int64_t used = (s.seqlen_kv + p.page_size - 1) / p.page_size;
    for (std::int64_t e = 0; e < used; ++e) {
      const std::int64_t page = t.page_table[b * t.page_table_stride + e];
      if (page < 0 || page >= p.num_pages) {
        return invalid("page_table" + index() + "[" + std::to_string(e) + "]", page,
                       "0 to " + std::to_string(p.num_pages - 1) + " (num_pages - 1)");
      }
    }
  }
  if (p.rotary_dim > 0) {
    const std::int64_t positions = t.rotary_cos.shape[1];
    if (s.seqlen_q > 0 && s.off < 0) {
      return invalid(
          "rotary position of query 0 of sequence " + std::to_string(b), s.off,
          "0 or more: seqlen_q may not exceed the lengthened sequence, " + std::to_string(s.seqlen_kv));
    }
    const std::int64_t last = std::max(s.seqlen_kv, s.seqlen_q > 0 ? s.off + s.seqlen_q : 0);
    if (last > positions) {
      return invalid("rotary_cos shape", shape_text(t.rotary_cos.shape),
                     "at least " + std::to_string(last) + " positions, which sequence " + std::to_string(b) +
                         " reaches");
    }
  }
  return {};
}

// Whether the keys that sequence `b` appends go to a page at all, and to which ones.
struct AppendedPages {
  const Problem& p;
  const Tensors& t;

  template <class Visit>  // bool visit(std::int64_t page): false stops
  bool for_each(std::int64_t b, const Visit& visit) const {
    const std::int64_t first = t.seqused_kv[b] / p.page_size;
    const std::int64_t last = (t.seqused_kv[b] + p.seqlen_new - 1) / p.page_size;
    for (std::int64_t e = first; e <= last; ++e) {
      if (!visit(t.page_table[b * t.page_table_stride + e])) {
        return false;
      }
    }
    return true;
  }
};

// Two sequences that append to one page would write the same slots, or one of them keys that the other sees.
// A table of bits on the stack (a run allocates nothing) lets through what is surely new; what may be known
// is looked up among the sequences before.
Status check_append_pages(const Problem& p, const Tensors& t) {
  std::bitset<std::size_t{1} << 16> seen;  // 8 KiB
  const AppendedPages pages{p, t};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    std::int64_t shared_page = -1;
    std::int64_t other = -1;
    pages.for_each(b, [&](std::int64_t page) {
      int own = 0;
      pages.for_each(b, [&](std::int64_t known) { return (own += known == page) < 2; });
      if (own > 1) {
        shared_page = page;
        other = b;
      }
      const auto bit = static_cast<std::size_t>(page) % seen.size();
      for (std::int64_t before = 0; seen[bit] && before < b && other < 0; ++before) {
        if (!pages.for_each(before, [&](std::int64_t known) { return known != page; })) {
          shared_page = page;
          other = before;
        }
      }
      return other < 0;
    });
    if (other >= 0) {
      return invalid("page that sequence " + std::to_string(b) + " appends to", shared_page,
                     other == b ? "a page that stands in its table once"
                                : "a page that no other sequence appends to; sequence " +
                                      std::to_string(other) + " does");
    }
    pages.for_each(b, [&](std::int64_t page) {
      seen.set(static_cast<std::size_t>(page) % seen.size());
      return true;
    });
  }
  return {};
}

Status validate_metadata(const Problem& p, const Tensors& t) {
  if (p.varlen_q) {
    ATTN_RETURN_IF_ERROR(
        check_cu_seqlens("cu_seqlens_q", t.cu_seqlens_q, p.batch, p.total_q, p.seqlen_q, "seqlen_q"));
  }
  if (p.varlen_kv) {
    ATTN_RETURN_IF_ERROR(
        check_cu_seqlens("cu_seqlens_kv", t.cu_seqlens_kv, p.batch, p.total_kv, p.seqlen_kv, "seqlen_kv"));
  }
  if (p.seqused_kv || p.page_size > 0 || p.rotary_dim > 0) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      ATTN_RETURN_IF_ERROR(check_sequence(p, t, b));
    }
  }
  if (p.page_size > 0 && p.seqlen_new > 0) {
    return check_append_pages(p, t);
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
  return metadata_on_host ? core::validate_metadata(p, t) : Status{};
}

}  // namespace attn::inline v1
