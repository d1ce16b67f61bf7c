// Whether a Problem is well formed, whatever the backend. One of the two places where calls are refused
// (validate_tensors.cpp is its second half; support.cpp and the backends' own support are the other).
// Tested in tests/negative.
#include <attn/plan.hpp>
#include <cmath>
#include <string>

#include "core/limits.hpp"
#include "core/refusal.hpp"

namespace attn::inline v1 {
namespace {

using core::check_range;
using core::invalid;
using core::kMaxHeadDim;
using core::kMaxLength;
using core::kMaxSplits;

Status validate_enums(const Problem& p) {
  if (p.dtype != DType::kFloat32 && p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) {
    return invalid("dtype", static_cast<std::int64_t>(p.dtype), "0 (fp32), 1 (fp16), 2 (bf16)");
  }
  if (p.alignment != Alignment::kUnset && p.alignment != Alignment::kTopLeft &&
      p.alignment != Alignment::kBottomRight) {
    return invalid("alignment", static_cast<std::int64_t>(p.alignment),
                   "0 (unset), 1 (top-left), 2 (bottom-right)");
  }
  if (p.rotary_style != RotaryStyle::kHalfSplit && p.rotary_style != RotaryStyle::kInterleaved) {
    return invalid("rotary_style", static_cast<std::int64_t>(p.rotary_style),
                   "0 (half-split), 1 (interleaved)");
  }
  return {};
}

Status validate_sizes(const Problem& p) {
  ATTN_RETURN_IF_ERROR(check_range("batch", p.batch, 0, kMaxLength));
  ATTN_RETURN_IF_ERROR(check_range("seqlen_q", p.seqlen_q, 0, kMaxLength));
  ATTN_RETURN_IF_ERROR(check_range("seqlen_kv", p.seqlen_kv, 0, kMaxLength));
  ATTN_RETURN_IF_ERROR(check_range("heads_q", p.heads_q, 1, kMaxLength));
  ATTN_RETURN_IF_ERROR(check_range("heads_kv", p.heads_kv, 1, kMaxLength));
  ATTN_RETURN_IF_ERROR(check_range("head_dim_qk", p.head_dim_qk, 1, kMaxHeadDim));
  ATTN_RETURN_IF_ERROR(check_range("head_dim_v", p.head_dim_v, 1, kMaxHeadDim));
  if (p.heads_q % p.heads_kv != 0) {
    return invalid("heads_q", p.heads_q, "a multiple of heads_kv, which is " + std::to_string(p.heads_kv));
  }
  return check_range("num_splits", p.num_splits, 0, kMaxSplits);
}

Status validate_softmax(const Problem& p) {
  if (p.softmax_scale.has_value() && !(std::abs(*p.softmax_scale) <= core::kMaxScale)) {
    return invalid("softmax_scale", std::to_string(*p.softmax_scale),
                   "unset, or a finite number of magnitude up to 2^126");
  }
  if (!std::isfinite(p.softcap) || p.softcap < 0.0F) {
    return invalid("softcap", std::to_string(p.softcap), "0 (off) or a finite number above 0");
  }
  ATTN_RETURN_IF_ERROR(check_range("window_left", p.window_left, -1, INT64_MAX));
  ATTN_RETURN_IF_ERROR(check_range("window_right", p.window_right, -1, INT64_MAX));
  if (p.needs_alignment() && p.alignment == Alignment::kUnset) {
    const char* why = p.causal                                    ? "causal"
                      : p.window_left >= 0 || p.window_right >= 0 ? "a window"
                      : p.alibi                                   ? "ALiBi"
                                                                  : "rotary";
    return invalid(
        "alignment", "unset",
        std::string("top-left or bottom-right; ") + why + " depends on it and there is no default");
  }
  return {};
}

Status validate_varlen(const Problem& p) {
  ATTN_RETURN_IF_ERROR(check_range("total_q", p.total_q, 0, p.varlen_q ? kMaxLength : 0));
  ATTN_RETURN_IF_ERROR(check_range("total_kv", p.total_kv, 0, p.varlen_kv ? kMaxLength : 0));
  if (p.varlen_kv && p.page_size > 0) {
    return invalid("varlen_kv", "true",
                   "false with paged K/V (page_size " + std::to_string(p.page_size) +
                       "): give the lengths as seqused_kv");
  }
  if (p.varlen_kv && p.seqlen_new > 0) {
    return invalid("varlen_kv", "true",
                   "false with an append (seqlen_new " + std::to_string(p.seqlen_new) +
                       "): packed keys leave no room for new ones");
  }
  return {};
}

Status validate_cache(const Problem& p) {
  ATTN_RETURN_IF_ERROR(check_range("page_size", p.page_size, 0, kMaxLength));
  ATTN_RETURN_IF_ERROR(check_range("num_pages", p.num_pages, 0, p.page_size > 0 ? kMaxLength : 0));
  ATTN_RETURN_IF_ERROR(check_range("seqlen_new", p.seqlen_new, 0, p.seqlen_kv));
  if (p.seqlen_new > 0 && !p.seqused_kv) {
    return invalid("seqused_kv", "false",
                   "true with an append: it says where the new keys of each sequence go");
  }
  ATTN_RETURN_IF_ERROR(check_range("rotary_dim", p.rotary_dim, 0, p.head_dim_qk));
  if (p.rotary_dim % 2 != 0) {
    return invalid("rotary_dim", p.rotary_dim, "an even number up to head_dim_qk");
  }
  if (p.rotary_dim > 0 && p.seqlen_new == 0) {
    return invalid("rotary_dim", p.rotary_dim, "0 without an append (seqlen_new is 0)");
  }
  return {};
}

}  // namespace

Status validate(const Problem& p) {
  ATTN_RETURN_IF_ERROR(validate_enums(p));
  ATTN_RETURN_IF_ERROR(validate_sizes(p));
  ATTN_RETURN_IF_ERROR(validate_softmax(p));
  ATTN_RETURN_IF_ERROR(validate_varlen(p));
  return validate_cache(p);
}

}  // namespace attn::inline v1
