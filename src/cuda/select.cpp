#include "cuda/select.hpp"

#include <algorithm>

#include "core/refusal.hpp"

namespace attn::cuda {
namespace {

// Row and key indices are int32 in the kernels, with room for a tile beyond the end and for the offset.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;
constexpr std::int64_t kSmallestTileM = 128;
// Below this many query rows the causal kernel of head_dim 64 takes 128 rows a tile, not 192: fewer rows are
// wasted on the diagonal (measured on an H200: bench/results/h200/tiles.json).
constexpr std::int64_t kShortCausalRows = 2048;

Status unsupported(std::string message) {
  return {StatusCode::kUnsupported, std::move(message)};
}

// A mask with no left bound is causal with another offset.
bool has_right_bound(const Problem& p) {
  return p.causal || p.window_right >= 0;
}

std::int64_t right_bound(const Problem& p) {
  const std::int64_t right = p.window_right >= 0 ? std::min(p.window_right, kMaxRows) : kMaxRows;
  return p.causal ? std::min<std::int64_t>(right, 0) : right;
}

}  // namespace

Status kernels_can(const Problem& p) {
  const struct {
    bool used;
    const char* what;
  } later[] = {{p.window_left >= 0, "window_left"},
               {p.softcap != 0.0F, "softcap"},
               {p.sinks, "sinks"},
               {p.alibi, "alibi"},
               {p.varlen_q || p.varlen_kv, "variable lengths (cu_seqlens)"},
               {p.seqused_kv, "seqused_kv"},
               {p.page_size > 0, "paged K and V"},
               {p.seqlen_new > 0 || p.rotary_dim > 0, "append and rotary"},
               {p.num_splits > 1, "num_splits above 1"}};
  if (p.dtype == DType::kFloat32) {
    return unsupported("dtype is fp32; the sm90 kernels compute bf16 and fp16");
  }
  if (p.head_dim_qk != p.head_dim_v ||
      (p.head_dim_qk != 64 && p.head_dim_qk != 128 && p.head_dim_qk != 256)) {
    return unsupported("head_dim_qk, head_dim_v are " + std::to_string(p.head_dim_qk) + ", " +
                       std::to_string(p.head_dim_v) +
                       "; the sm90 kernels compute equal ones of 64, 128 and 256");
  }
  for (const auto& feature : later) {
    if (feature.used) {
      return unsupported(std::string(feature.what) + " is not computed by the sm90 kernels yet");
    }
  }
  const struct {
    const char* name;
    std::int64_t value;
    std::int64_t most;
  } sizes[] = {{"seqlen_q", p.seqlen_q, kMaxRows}, {"seqlen_kv", p.seqlen_kv, kMaxRows}};
  for (const auto& size : sizes) {
    if (size.value > size.most) {
      return unsupported(std::string(size.name) + " is " + std::to_string(size.value) +
                         "; the sm90 kernels take at most " + std::to_string(size.most));
    }
  }
  const std::int64_t m_tiles = std::max<std::int64_t>(1, (p.seqlen_q + kSmallestTileM - 1) / kSmallestTileM);
  if (p.heads_q > kMaxTiles || p.batch > kMaxTiles / std::max<std::int64_t>(1, p.heads_q) ||
      p.batch * p.heads_q > kMaxTiles / m_tiles) {
    return unsupported("batch, heads_q, seqlen_q make more than " + std::to_string(kMaxTiles) +
                       " tiles; the sm90 kernels count no further");
  }
  return {};
}

Selection select_kernel(const Problem& p) {
  const sm90::KernelKey key{p.dtype == DType::kBFloat16 ? sm90::Element::kBFloat16 : sm90::Element::kFloat16,
                            static_cast<int>(p.head_dim_qk),
                            has_right_bound(p) ? sm90::Mask::kCausal : sm90::Mask::kFull};
  Selection selection;
  const bool prefer_small =
      key.head_dim == 64 && key.mask == sm90::Mask::kCausal && p.seqlen_q < kShortCausalRows;
  for (const KernelEntry& entry : kernels_table()) {
    if (entry.key == key && (selection.entry == nullptr || (prefer_small && entry.config.warpgroups == 2))) {
      selection.entry = &entry;
    }
  }
  DenseShape& shape = selection.shape;
  shape.batch = p.batch;
  shape.seqlen_q = p.seqlen_q;
  shape.seqlen_kv = p.seqlen_kv;
  shape.heads_q = p.heads_q;
  shape.heads_kv = p.heads_kv;
  shape.scale = p.scale();
  if (has_right_bound(p)) {
    const std::int64_t off = p.alignment == Alignment::kBottomRight ? p.seqlen_kv - p.seqlen_q : 0;
    // Beyond ±seqlen nothing changes, and int32 holds it.
    shape.causal_offset = std::clamp(off + right_bound(p), -p.seqlen_q - 1, p.seqlen_kv);
  }
  return selection;
}

}  // namespace attn::cuda
