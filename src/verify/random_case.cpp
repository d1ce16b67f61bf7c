// Cases drawn from the whole space. Contract: random_case in case.hpp.
#include <algorithm>

#include "verify/case.hpp"
#include "verify/random.hpp"

namespace attn::verify {
namespace {

constexpr std::uint64_t kStreamCase = 105;

constexpr std::int64_t kHeadDims[] = {1,  7,  8,   16,  31,  32,  40,  59,  63,  64,  65,  72,
                                      80, 96, 112, 120, 128, 136, 160, 176, 192, 224, 256, 512};
constexpr std::int64_t kRatios[] = {1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
constexpr std::int64_t kPageSizes[] = {1, 2, 3, 16, 16, 48, 64, 100, 128, 256};
constexpr std::int64_t kSplits[] = {0, 0, 0, 1, 2, 3, 7, 8, 128};
constexpr std::int64_t kEdges[] = {1,  2,   15,  16,  17,  31,  32,  33,  63,  64,
                                   65, 127, 128, 129, 130, 191, 192, 255, 256, 257};

constexpr std::int64_t kDenseHeadDims[] = {32, 64, 64, 80, 96, 112, 128, 128, 160, 192, 256};
constexpr std::int64_t kDenseEdges[] = {1,   16,  63,  64,  65,  79,  80,  81,  95,  96,
                                        97,  127, 128, 129, 159, 160, 161, 191, 192, 193,
                                        255, 256, 257, 383, 384, 385, 512, 513, 576, 640};

std::int64_t draw_size(Draws& d, std::int64_t most) {
  if (d.one_in(24)) {
    return 0;
  }
  const std::int64_t size = d.one_in(2) ? d.pick(kEdges) : d.between(1, d.one_in(3) ? most : 130);
  return std::min(size, most);
}

void draw_sizes(Draws& d, Problem* p) {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  p->dtype = d.pick(kDTypes);
  p->batch = d.between(1, 4);
  p->heads_kv = d.between(1, 3);
  p->heads_q = p->heads_kv * d.pick(kRatios);
  p->head_dim_qk = d.pick(kHeadDims);
  p->head_dim_v = d.one_in(5) ? d.pick(kHeadDims) : p->head_dim_qk;
  const bool decode = d.one_in(4);
  p->seqlen_q = decode ? d.between(1, 8) : draw_size(d, 300);
  p->seqlen_kv = draw_size(d, decode ? 1500 : 500);
}

// Sizes within a dense 16-bit kernel's reach that cross its tiles: 128 and 192 rows, 64 to 192 keys.
void draw_dense_sizes(Draws& d, Problem* p) {
  p->dtype = d.one_in(2) ? DType::kFloat16 : DType::kBFloat16;
  p->batch = d.between(1, 3);
  p->heads_kv = d.between(1, 2);
  p->heads_q = p->heads_kv * d.pick(kRatios);
  const auto head_dim = [&d] { return d.one_in(2) ? d.pick(kDenseHeadDims) : 8 * d.between(1, 32); };
  p->head_dim_qk = head_dim();
  p->head_dim_v = d.one_in(3) ? head_dim() : p->head_dim_qk;
  const auto length = [&d] {
    return d.one_in(40) ? 0 : d.one_in(2) ? d.pick(kDenseEdges) : d.between(1, d.one_in(3) ? 1100 : 300);
  };
  p->seqlen_q = d.one_in(6) ? d.between(1, 8) : length();
  p->seqlen_kv = length();
}

std::int64_t draw_bound(Draws& d, std::int64_t seqlen) {
  switch (d.between(0, 4)) {
    case 0:
      return -1;
    case 1:
      return 0;
    case 2:
      return d.between(0, std::max<std::int64_t>(1, seqlen));
    case 3:
      return d.one_in(4) ? INT64_MAX : seqlen + 5;
    default:
      return d.between(0, 70);
  }
}

void draw_softmax(Draws& d, Problem* p) {
  p->causal = d.one_in(2);
  if (d.one_in(3)) {
    p->window_left = draw_bound(d, p->seqlen_kv);
    p->window_right = draw_bound(d, p->seqlen_kv);
  }
  p->alibi = d.one_in(5);
  p->softcap = d.one_in(5) ? (d.one_in(2) ? 15.0F : 1.0F) : 0.0F;
  p->sinks = d.one_in(5);
  p->lse_with_sink = !p->sinks || d.one_in(2);
  if (d.one_in(6)) {
    constexpr float kScales[] = {0.0F, -0.25F, 1.0F, 1e-6F, 0.125F, -1.0F};
    p->softmax_scale = d.pick(kScales);
  }
  p->want_lse = !d.one_in(5);
  p->num_splits = d.pick(kSplits);
  p->batch_invariant = d.one_in(5);
}

void draw_kv(Draws& d, Problem* p) {
  p->varlen_q = d.one_in(4);
  switch (d.between(0, 5)) {
    case 0:
      p->varlen_kv = true;
      p->seqused_kv = d.one_in(4);
      break;
    case 1:
      p->seqused_kv = true;
      break;
    case 2:
    case 3:
      p->page_size = d.pick(kPageSizes);
      p->seqused_kv = !d.one_in(4);
      break;
    default:
      break;
  }
  if (!p->varlen_kv && p->seqlen_kv > 0 && d.one_in(4)) {
    p->seqused_kv = true;
    p->seqlen_new = d.between(1, std::min<std::int64_t>(p->seqlen_kv, d.one_in(2) ? 3 : 140));
    // Rotary positions must exist: top-left, or never more queries than the lengthened sequence has keys.
    if (p->head_dim_qk >= 2 && d.one_in(2)) {
      p->rotary_dim = d.one_in(2) ? p->head_dim_qk / 2 * 2 : 2 * d.between(1, p->head_dim_qk / 2);
      p->rotary_style = d.one_in(2) ? RotaryStyle::kHalfSplit : RotaryStyle::kInterleaved;
    }
  }
}

}  // namespace

Case random_case(std::uint64_t seed, double max_scores, Space space) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Draws d(seed, kStreamCase + 1000 * attempt);
    Case c;
    c.seed = seed;
    Problem& p = c.problem;
    if (space == Space::kDense) {
      draw_dense_sizes(d, &p);
      draw_softmax(d, &p);
      p.num_splits = 0;
    } else {
      draw_sizes(d, &p);
      draw_softmax(d, &p);
      draw_kv(d, &p);
    }
    if (p.needs_alignment()) {
      p.alignment = d.one_in(4) ? Alignment::kTopLeft : Alignment::kBottomRight;
    }
    if (p.rotary_dim > 0 && p.alignment == Alignment::kBottomRight) {
      p.seqlen_q = std::min(p.seqlen_q, p.seqlen_new);
    }
    c.data = d.one_in(2) ? Data::kNormal
                         : all_data()[static_cast<std::size_t>(
                               d.between(0, static_cast<std::int64_t>(all_data().size()) - 1))];
    const auto layouts = static_cast<std::int64_t>(all_layouts().size());
    c.layout =
        d.one_in(2) ? Layout::kBshd : all_layouts()[static_cast<std::size_t>(d.between(0, layouts - 1))];
    c.offset = d.one_in(3) ? d.between(1, 9) : 0;
    c.shared_pages = p.page_size > 0 && d.one_in(3) ? d.between(1, 4) : 0;
    if (p.alibi && d.one_in(2)) {
      constexpr Slopes kSlopes[] = {Slopes::kBatch, Slopes::kBatch, Slopes::kNegative, Slopes::kZero,
                                    Slopes::kMixed};
      c.slopes = d.pick(kSlopes);
    }
    if (p.sinks && d.one_in(2)) {
      constexpr Sinks kSinks[] = {Sinks::kHuge, Sinks::kMinusInf, Sinks::kMixed};
      c.sinks = d.pick(kSinks);
    }
    c.poison = d.one_in(4) ? (d.one_in(2) ? Poison::kInf : Poison::kHuge) : Poison::kNaN;
    // A draw that contradicts itself or is too large is drawn again; most are neither.
    if (complete(&c).ok() && total_scores(c) <= max_scores) {
      return c;
    }
  }
}

}  // namespace attn::verify
