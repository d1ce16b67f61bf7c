// The second half of validate(problem, tensors): what lengths, page tables and slopes hold, where they are
// host memory. Nothing here allocates unless it refuses. Tested in tests/negative.
#include <algorithm>
#include <attn/plan.hpp>
#include <bitset>
#include <cmath>
#include <string>

#include "core/geometry.hpp"
#include "core/limits.hpp"
#include "core/refusal.hpp"
#include "core/validate_tensors.hpp"

namespace attn::core {
namespace {

// Slopes are data, but one that is not finite, or that overflows fp32 once in base 2, has no meaning.
Status check_slopes(const Problem& p, const Tensors& t) {
  const std::int64_t rows = t.alibi_batch_stride == 0 ? 1 : p.batch;
  for (std::int64_t b = 0; p.alibi && p.batch > 0 && b < rows; ++b) {
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      const float slope = t.alibi_slopes[b * t.alibi_batch_stride + h];
      if (!(std::abs(slope) <= kMaxScale)) {
        return invalid("alibi_slopes[" + std::to_string(b * t.alibi_batch_stride + h) + "]",
                       std::to_string(slope), "a finite number of magnitude up to 2^126");
      }
    }
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

}  // namespace

Status validate_metadata(const Problem& p, const Tensors& t) {
  ATTN_RETURN_IF_ERROR(check_slopes(p, t));
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

}  // namespace attn::core
