#include "cuda/select.hpp"

#include <algorithm>

#include "core/refusal.hpp"

namespace attn::cuda {
namespace {

// Row and key indices are int32 in the kernels: a row of a tile that goes beyond the end, and a bound of the
// mask added to it. Tiles are counted in uint32, with room for the blocks that claim past the end.
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 30) - 256;
constexpr std::int64_t kMaxTiles = (std::int64_t{1} << 32) - (std::int64_t{1} << 16);
constexpr std::int64_t kMaxBatch = (std::int64_t{1} << 31) - 1;  // TMA coordinates are int32
constexpr std::int64_t kSmallestTileM = 128;
constexpr std::int64_t kHeadDimStep = 8;
// softcap and its inverse times a logit stay finite floats.
constexpr float kMaxSoftcap = 0x1p100F;
constexpr float kMinSoftcap = 0x1p-100F;
// Below this many query rows the band kernel of head_dim 64 takes 128 rows a tile, not 192: fewer rows are
// wasted on the diagonal (measured on an H200 at 512, 768 and 1024 rows: docs/performance.md).
constexpr std::int64_t kShortBandRows = 768;

Status unsupported(std::string message) {
  return {StatusCode::kUnsupported, std::move(message)};
}

std::int64_t right_bound(const Problem& p) {
  const std::int64_t right = p.window_right >= 0 ? std::min(p.window_right, kMaxRows) : kMaxRows;
  return p.causal ? std::min<std::int64_t>(right, 0) : right;
}

std::int64_t left_bound(const Problem& p) {
  return p.window_left >= 0 ? std::min(p.window_left, kMaxRows) : kMaxRows;
}

bool is_full(const Problem& p) {
  return !p.causal && p.window_left < 0 && p.window_right < 0;
}

// A scale of 0 is multiplied before the mask too: 0 · Inf of a visible key is NaN, and of a masked one
// nothing.
sm90::Logits logits_of(const Problem& p) {
  return p.softcap != 0.0F || p.alibi || p.scale() == 0.0F ? sm90::Logits::kChanged : sm90::Logits::kScaled;
}

// Of the kernels that compute the problem, the one with the smallest tile of head_dim; then a full one for a
// full problem; then by the number of rows.
bool better(const KernelEntry& x, const KernelEntry& y, const Problem& p) {
  const int columns_x = x.key.head_dim_qk + x.key.head_dim_v;
  const int columns_y = y.key.head_dim_qk + y.key.head_dim_v;
  if (columns_x != columns_y) {
    return columns_x < columns_y;
  }
  if (x.key.mask != y.key.mask) {
    return x.key.mask == sm90::Mask::kFull;
  }
  const bool prefer_small = x.key.mask == sm90::Mask::kBand && p.seqlen_q < kShortBandRows;
  return (x.config.warpgroups < y.config.warpgroups) == prefer_small &&
         x.config.warpgroups != y.config.warpgroups;
}

}  // namespace

std::vector<const KernelEntry*> kernels_for(const Problem& p) {
  const auto element = p.dtype == DType::kBFloat16 ? sm90::Element::kBFloat16 : sm90::Element::kFloat16;
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry& entry : kernels_table()) {
    if (entry.key.element == element && entry.key.head_dim_qk >= p.head_dim_qk &&
        entry.key.head_dim_v >= p.head_dim_v && entry.key.logits == logits_of(p) &&
        (entry.key.mask == sm90::Mask::kBand || is_full(p))) {
      kernels.push_back(&entry);
    }
  }
  std::stable_sort(kernels.begin(), kernels.end(),
                   [&](const KernelEntry* x, const KernelEntry* y) { return better(*x, *y, p); });
  return kernels;
}

std::string public_name(const KernelEntry& entry) {
  std::string name = entry.name;
  return name.replace(name.find('_'), 1, ":");
}

Status kernels_can(const Problem& p) {
  const struct {
    bool used;
    const char* what;
  } later[] = {{p.varlen_q || p.varlen_kv, "variable lengths (cu_seqlens)"},
               {p.seqused_kv, "seqused_kv"},
               {p.page_size > 0, "paged K and V"},
               {p.seqlen_new > 0 || p.rotary_dim > 0, "append and rotary"},
               {p.num_splits > 1, "num_splits above 1"}};
  if (p.dtype == DType::kFloat32) {
    return unsupported("dtype is fp32; the sm90 kernels compute bf16 and fp16");
  }
  const struct {
    const char* name;
    std::int64_t value;
  } head_dims[] = {{"head_dim_qk", p.head_dim_qk}, {"head_dim_v", p.head_dim_v}};
  for (const auto& d : head_dims) {
    if (d.value % kHeadDimStep != 0) {
      return unsupported(std::string(d.name) + " is " + std::to_string(d.value) +
                         "; the sm90 kernels take multiples of 8, at most 256");
    }
  }
  if (kernels_for(p).empty()) {
    return unsupported("head_dim_qk, head_dim_v are " + std::to_string(p.head_dim_qk) + ", " +
                       std::to_string(p.head_dim_v) + "; the sm90 kernels of this build take at most 256");
  }
  if (p.softcap != 0.0F && (p.softcap > kMaxSoftcap || p.softcap < kMinSoftcap)) {
    return unsupported("softcap is " + std::to_string(p.softcap) +
                       "; the sm90 kernels take 2^-100 to 2^100, or 0 for none");
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
  } sizes[] = {{"seqlen_q", p.seqlen_q, kMaxRows},
               {"seqlen_kv", p.seqlen_kv, kMaxRows},
               {"batch", p.batch, kMaxBatch},
               {"heads_q", p.heads_q, kMaxBatch}};
  for (const auto& size : sizes) {
    if (size.value > size.most) {
      return unsupported(std::string(size.name) + " is " + std::to_string(size.value) +
                         "; the sm90 kernels take at most " + std::to_string(size.most));
    }
  }
  const std::int64_t m_tiles = std::max<std::int64_t>(1, (p.seqlen_q + kSmallestTileM - 1) / kSmallestTileM);
  if (p.batch > kMaxTiles / std::max<std::int64_t>(1, p.heads_q) ||
      p.batch * p.heads_q > kMaxTiles / m_tiles) {
    return unsupported("batch, heads_q, seqlen_q make more than " + std::to_string(kMaxTiles) +
                       " tiles; the sm90 kernels count no further");
  }
  return {};
}

DenseShape dense_shape(const Problem& p) {
  DenseShape shape;
  shape.batch = p.batch;
  shape.seqlen_q = p.seqlen_q;
  shape.seqlen_kv = p.seqlen_kv;
  shape.heads_q = p.heads_q;
  shape.heads_kv = p.heads_kv;
  shape.head_dim_qk = p.head_dim_qk;
  shape.head_dim_v = p.head_dim_v;
  shape.scale = p.scale();
  shape.softcap = p.softcap;
  shape.lse_has_sink = p.lse_with_sink;
  const std::int64_t off = p.alignment == Alignment::kBottomRight ? p.seqlen_kv - p.seqlen_q : 0;
  shape.key_offset = off;
  // Beyond ±seqlen nothing changes, and int32 holds it.
  shape.band_lower = std::clamp(off - left_bound(p), -p.seqlen_q, p.seqlen_kv);
  shape.band_upper = std::clamp(off + right_bound(p) + 1, -p.seqlen_q, p.seqlen_kv);
  return shape;
}

}  // namespace attn::cuda
