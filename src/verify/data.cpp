// Values of Q, K, V, sinks, slopes and rotations. Contract: data.hpp.
#include "verify/data.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/random.hpp"

namespace attn::verify {
namespace {

// Streams of random.hpp beside those of Which.
constexpr std::uint64_t kStreamSinkKey = 11;
constexpr std::uint64_t kStreamSinks = 12;
constexpr std::uint64_t kStreamRotation = 13;
constexpr std::uint64_t kStreamSpoil = 20;  // + Which

constexpr std::int64_t kBlock = 64;        // keys after which the drift goes up: a common tile
constexpr std::int64_t kDriftBlocks = 64;  // the drift starts again after so many, to stay in fp16's range
constexpr std::int64_t kStepBlocks = 32;

}  // namespace

Values::Values(const Case& c)
    : data_(c.data),
      slopes_(c.slopes),
      sinks_(c.sinks),
      dtype_(c.problem.dtype),
      seed_(c.seed),
      seqlen_q_(c.problem.seqlen_q),
      seqlen_kv_(c.problem.seqlen_kv),
      heads_q_(c.problem.heads_q),
      heads_kv_(c.problem.heads_kv),
      sink_key_(static_cast<std::int64_t>(random_bits(c.seed, kStreamSinkKey, 0) %
                                          static_cast<std::uint64_t>(std::max<std::int64_t>(1, seqlen_kv_)))),
      root_d_(std::sqrt(static_cast<float>(c.problem.head_dim_qk))) {}

void Values::normal(Which which, const RowId& id, std::int64_t count, float* out) const {
  const std::int64_t rows = which == Which::kQ ? seqlen_q_ : seqlen_kv_;
  const std::int64_t heads = which == Which::kQ ? heads_q_ : heads_kv_;
  const std::int64_t first = ((id.b * rows + id.pos) * heads + id.h) * count;
  for (std::int64_t n = 0; n < count; ++n) {
    out[n] = static_cast<float>(
        random_normal(seed_, static_cast<std::uint64_t>(which), static_cast<std::uint64_t>(first + n)));
  }
}

void Values::q_row(const RowId& id, std::int64_t count, float* out) const {
  normal(Which::kQ, id, count, out);
  float factor = 1.0F;
  float shift = 0.0F;
  switch (data_) {
    case Data::kSd8:
      factor = 8.0F;
      break;
    case Data::kLargeQ:
      factor = 30.0F;
      break;
    case Data::kHuge:
      factor = dtype_ == DType::kFloat16 ? 100.0F : 300.0F;
      break;
    case Data::kConstant:
      factor = 0.0F;
      break;
    case Data::kDrift:
    case Data::kSteps:
    case Data::kSinkKey:
      factor = 0.25F;
      shift = 1.0F;
      break;  // so that a constant in K moves the logit
    case Data::kRamp:
    case Data::kAlternating:
    case Data::kLow:
      factor = 0.0F;
      shift = 1.0F;
      break;
    default:
      break;
  }
  for (std::int64_t n = 0; n < count; ++n) {
    out[n] = out[n] * factor + shift;
  }
}

void Values::k_row(const RowId& id, std::int64_t count, float* out) const {
  normal(Which::kK, id, count, out);
  float factor = 1.0F;
  float logit = 0.0F;  // added to this key's logit at the default scale and a Q of ones
  const std::int64_t block = id.pos / kBlock;
  switch (data_) {
    case Data::kSinkKey:
      logit = id.pos == sink_key_ ? 30.0F : 0.0F;
      break;
    case Data::kDrift:
      logit = 12.0F * static_cast<float>(block % kDriftBlocks);
      break;
    case Data::kSteps:
      logit = 30.0F * static_cast<float>(block % kStepBlocks);
      break;
    case Data::kRamp:
      factor = 0.0F;
      logit = 8.0F * static_cast<float>(id.pos) / static_cast<float>(std::max<std::int64_t>(1, seqlen_kv_));
      break;
    case Data::kConstant:
      factor = 0.0F;
      break;
    case Data::kAlternating:
      factor = 0.125F;
      logit = id.pos % 2 == 0 ? 40.0F : -40.0F;
      break;
    case Data::kHuge:
      factor = dtype_ == DType::kFloat16 ? 100.0F : 300.0F;
      break;
    case Data::kLow:
      factor = 0.125F;
      logit = -200.0F;
      break;
    default:
      break;
  }
  for (std::int64_t n = 0; n < count; ++n) {
    out[n] = out[n] * factor + logit / root_d_;
  }
}

void Values::v_row(const RowId& id, std::int64_t count, float* out) const {
  normal(Which::kV, id, count, out);
  const bool fp16 = dtype_ == DType::kFloat16;
  for (std::int64_t n = 0; n < count; ++n) {
    switch (data_) {
      case Data::kConstant:
        out[n] = static_cast<float>(id.h + 1);
        break;
      case Data::kRamp:
        out[n] = static_cast<float>(id.pos + n % 4) * 0.0625F;
        break;
      case Data::kLargeV:
        out[n] *= fp16 ? 0x1p12F : 0x1p100F;
        break;
      case Data::kSmallV:
        out[n] *= fp16 ? 0x1p-8F : 0x1p-100F;
        break;
      case Data::kAlternating:
        out[n] = (id.pos % 2 == 0 ? 1.0F : -1.0F) * (1.0F + 0.125F * out[n]);
        break;
      default:
        break;
    }
  }
}

// A few Inf and NaN: rarely in K (one makes every row that sees it NaN), more often in V (one channel each)
// and Q (one row each).
void Values::spoil(Which which, const RowId& id, std::int64_t count, float* out) const {
  const std::int64_t rows = which == Which::kQ ? seqlen_q_ : seqlen_kv_;
  const std::int64_t heads = which == Which::kQ ? heads_q_ : heads_kv_;
  const std::uint64_t r = random_bits(seed_, kStreamSpoil + static_cast<std::uint64_t>(which),
                                      static_cast<std::uint64_t>((id.b * rows + id.pos) * heads + id.h));
  const std::uint64_t one_in = which == Which::kK ? 401 : which == Which::kV ? 101 : 23;
  if (r % one_in != 0) {
    return;
  }
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kValues[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), -kInf};
  out[(r >> 16) % static_cast<std::uint64_t>(count)] = kValues[(r >> 60) % 4];
}

void Values::row(Which which, const RowId& id, std::int64_t count, float* out) const {
  switch (which) {
    case Which::kQ:
      q_row(id, count, out);
      break;
    case Which::kK:
      k_row(id, count, out);
      break;
    case Which::kV:
      v_row(id, count, out);
      break;
  }
  if (data_ == Data::kNonFinite) {
    spoil(which, id, count, out);
  }
}

float Values::sink(std::int64_t h) const {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto normal =
      static_cast<float>(2.0 * random_normal(seed_, kStreamSinks, static_cast<std::uint64_t>(h)));
  const float huge[] = {1e4F, -1e4F};
  const float mixed[] = {-kInf, 1e4F, normal, -1e4F, 0.0F};
  switch (sinks_) {
    case Sinks::kNormal:
      break;
    case Sinks::kHuge:
      return huge[h % 2];
    case Sinks::kMinusInf:
      return -kInf;
    case Sinks::kMixed:
      return mixed[h % 5];
  }
  return normal;
}

// ½, ¼, … 2⁻⁸ over the heads as in the ALiBi paper; other batch entries have other ones, some negative.
float Values::slope(std::int64_t b, std::int64_t h) const {
  const float base = std::ldexp(1.0F, -1 - static_cast<int>(h % 8));
  constexpr float kMixed[] = {8.0F, -8.0F, 0.0F, -0.25F};
  switch (slopes_) {
    case Slopes::kPaper:
    case Slopes::kBatch:
      break;
    case Slopes::kNegative:
      return -base;
    case Slopes::kZero:
      return 0.0F;
    case Slopes::kMixed:
      return kMixed[h % 4];
  }
  return base * (b % 2 == 0 ? 1.0F + 0.25F * static_cast<float>(b) : -1.0F);
}

void Values::rotation(std::int64_t position, std::int64_t pair, float* cos, float* sin) const {
  const double t =
      4.0 * random_uniform(seed_, kStreamRotation, static_cast<std::uint64_t>(position * 65536 + pair)) - 2.0;
  *cos = static_cast<float>((1.0 - t * t) / (1.0 + t * t));
  *sin = static_cast<float>(2.0 * t / (1.0 + t * t));
}

}  // namespace attn::verify
