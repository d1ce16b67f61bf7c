// The judge itself, by cases small enough to work out by hand.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/numeric.hpp"

namespace {

using attn::Alignment;
using attn::DType;
using attn::Problem;
using attn::Tensors;
using attn::TensorView;

constexpr double kInf = std::numeric_limits<double>::infinity();

// fp32, one head of width 1 unless told; K = 0, so that every visible key weighs the same.
struct Small {
  Problem p;
  Tensors t;
  std::vector<float> q, k, v, o;

  Small(std::int64_t seqlen_q, std::int64_t seqlen_kv) {
    p.dtype = DType::kFloat32;
    p.seqlen_q = seqlen_q;
    p.seqlen_kv = seqlen_kv;
    p.head_dim_qk = p.head_dim_v = 1;
    q.assign(static_cast<std::size_t>(seqlen_q), 0.0F);
    k.assign(static_cast<std::size_t>(seqlen_kv), 0.0F);
    for (std::int64_t j = 0; j < seqlen_kv; ++j) {
      v.push_back(static_cast<float>(j));
    }
    t.q = TensorView::bshd(q.data(), DType::kFloat32, 1, seqlen_q, 1, 1);
    t.k = TensorView::bshd(k.data(), DType::kFloat32, 1, seqlen_kv, 1, 1);
    t.v = TensorView::bshd(v.data(), DType::kFloat32, 1, seqlen_kv, 1, 1);
  }
  double o_of(std::int64_t i, attn::reference::Row* row = nullptr) const {
    double out = -1;
    const attn::reference::Row result = attn::reference::forward_row(p, t, 0, 0, i, &out);
    if (row != nullptr) {
      *row = result;
    }
    return out;
  }
};

TEST(Reference, CausalAlignments) {
  Small s(2, 5);
  s.p.causal = true;
  s.p.alignment = Alignment::kBottomRight;
  attn::reference::Row row;
  EXPECT_DOUBLE_EQ(s.o_of(0, &row), 1.5);
  EXPECT_DOUBLE_EQ(row.lse, std::log(4.0));
  EXPECT_EQ(row.visible, 4);
  EXPECT_DOUBLE_EQ(s.o_of(1, &row), 2.0);
  EXPECT_DOUBLE_EQ(row.lse, std::log(5.0));
  s.p.alignment = Alignment::kTopLeft;
  EXPECT_DOUBLE_EQ(s.o_of(0), 0.0);
  EXPECT_DOUBLE_EQ(s.o_of(1), 0.5);
}

TEST(Reference, EmptyRows) {
  Small s(5, 2);
  s.p.causal = true;
  s.p.alignment = Alignment::kBottomRight;
  attn::reference::Row row;
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(s.o_of(i, &row), 0.0);
    EXPECT_EQ(row.lse, -kInf);
    EXPECT_EQ(row.max_abs_v, 0.0);
  }
  EXPECT_EQ(s.o_of(4, &row), 0.5);
  s.k = {1, 1};
  s.q.assign(5, -std::numeric_limits<float>::infinity());  // all logits −inf by data
  EXPECT_EQ(s.o_of(4, &row), 0.0);
  EXPECT_EQ(row.lse, -kInf);
  EXPECT_EQ(row.visible, 2);
}

TEST(Reference, WindowsDoNotDependOnCausal) {
  Small s(6, 6);
  s.p.alignment = Alignment::kBottomRight;
  s.p.window_left = 2;
  s.p.window_right = 0;
  const double expected[] = {0, 0.5, 1, 2, 3, 4};
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(s.o_of(i), expected[i]);
  }
  s.p.window_right = 1;
  EXPECT_DOUBLE_EQ(s.o_of(0), 0.5);
  s.p.causal = true;  // tightens the right side
  EXPECT_DOUBLE_EQ(s.o_of(0), 0.0);
}

TEST(Reference, ScaleSoftcapAlibiInOrder) {
  Small s(1, 2);
  s.q = {2};
  s.k = {3, -1};
  s.v = {1, 0};
  s.p.softmax_scale = 0.5F;  // logits 3, −1
  attn::reference::Row row;
  EXPECT_DOUBLE_EQ(s.o_of(0, &row), 1 / (1 + std::exp(-4.0)));
  EXPECT_DOUBLE_EQ(row.lse, 3 + std::log1p(std::exp(-4.0)));
  EXPECT_DOUBLE_EQ(row.logit_error, 3.0);
  s.p.softcap = 2.0F;
  const double a = 2 * std::tanh(1.5);
  const double b = 2 * std::tanh(-0.5);
  EXPECT_DOUBLE_EQ(s.o_of(0, &row), 1 / (1 + std::exp(b - a)));
  const float slope = 0.25F;
  s.t.alibi_slopes = &slope;
  s.p.alibi = true;
  s.p.alignment = Alignment::kBottomRight;  // off = 1: biases −0.25 and 0, after the cap
  EXPECT_DOUBLE_EQ(s.o_of(0, &row), 1 / (1 + std::exp(b - (a - 0.25))));
  s.p.alignment = Alignment::kTopLeft;  // off = 0: biases 0 and 0.25
  EXPECT_DOUBLE_EQ(s.o_of(0, &row), 1 / (1 + std::exp(b + 0.25 - a)));
}

TEST(Reference, SinkIsOnePlainLogit) {
  Small s(1, 3);
  const float sink = std::log(2.0F);
  s.t.sinks = &sink;
  s.p.sinks = true;
  attn::reference::Row row;
  EXPECT_NEAR(s.o_of(0, &row), 3.0 / 5.0, 1e-7);  // (0 + 1 + 2) / (3 + 2)
  EXPECT_NEAR(row.lse, std::log(5.0), 1e-7);
  s.p.lse_with_sink = false;
  EXPECT_NEAR(s.o_of(0, &row), 3.0 / 5.0, 1e-7);
  EXPECT_NEAR(row.lse, std::log(3.0), 1e-7);
  const float high = 5000.0F;  // O vanishes, the keys' own sum does not
  s.t.sinks = &high;
  EXPECT_EQ(s.o_of(0, &row), 0.0);
  EXPECT_DOUBLE_EQ(row.lse, std::log(3.0));
}

TEST(Reference, BadDataFollowsIeee) {
  Small s(2, 2);
  s.p.causal = true;
  s.p.alignment = Alignment::kBottomRight;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  s.v[1] = nan;  // seen by query 1 alone
  EXPECT_EQ(s.o_of(0), 0.0);
  EXPECT_TRUE(std::isnan(s.o_of(1)));
  s.v[1] = 1;
  s.k[1] = nan;
  attn::reference::Row row;
  EXPECT_EQ(s.o_of(0), 0.0);
  EXPECT_TRUE(std::isnan(s.o_of(1, &row)));
  EXPECT_TRUE(std::isnan(row.lse));
}

TEST(Reference, GroupedHeadsAndLengths) {
  // Two key/value heads with V = 1 and 2, four query heads, keys beyond seqused hold NaN.
  Problem p;
  p.dtype = DType::kBFloat16;
  p.seqlen_q = 1;
  p.seqlen_kv = 3;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.head_dim_qk = 2;
  p.head_dim_v = 1;
  p.seqused_kv = true;
  const std::uint16_t one = attn::core::float_to_bf16(1);
  const std::uint16_t two = attn::core::float_to_bf16(2);
  const std::uint16_t nan = 0x7FC0;
  const std::vector<std::uint16_t> q(8, one);
  const std::vector<std::uint16_t> k(12, one);
  const std::vector<std::uint16_t> v{one, two, one, two, nan, nan};
  const std::int32_t used = 2;
  Tensors t;
  t.q = TensorView::bshd(q.data(), p.dtype, 1, 1, 4, 2);
  t.k = TensorView::bshd(k.data(), p.dtype, 1, 3, 2, 2);
  t.v = TensorView::bshd(v.data(), p.dtype, 1, 3, 2, 1);
  t.seqused_kv = &used;
  for (std::int64_t h = 0; h < 4; ++h) {
    double o = 0;
    attn::reference::forward_row(p, t, 0, h, 0, &o);
    EXPECT_DOUBLE_EQ(o, h < 2 ? 1.0 : 2.0);
  }
}

TEST(Reference, AppendRotatesByItsDefinition) {
  Problem p;
  p.dtype = DType::kFloat32;
  p.seqlen_q = 1;
  p.seqlen_kv = 4;
  p.head_dim_qk = 5;  // four rotated, one passed on
  p.head_dim_v = 1;
  p.seqused_kv = true;
  p.seqlen_new = 1;
  p.rotary_dim = 4;
  p.alignment = Alignment::kBottomRight;
  std::vector<float> k(20, 0.0F);
  std::vector<float> v(4, 0.0F);
  const std::vector<float> k_new{1, 2, 3, 4, 5};
  const std::vector<float> v_new{9};
  const std::int32_t used = 2;
  std::vector<float> cos(8, 1.0F);
  std::vector<float> sin(8, 0.0F);
  cos[4] = 0.0F;  // position 2: a quarter turn for pair 0, half a turn for pair 1
  sin[4] = 1.0F;
  cos[5] = -1.0F;
  Tensors t;
  t.k = TensorView::bshd(k.data(), p.dtype, 1, 4, 1, 5);
  t.v = TensorView::bshd(v.data(), p.dtype, 1, 4, 1, 1);
  t.k_new = TensorView::bshd(k_new.data(), p.dtype, 1, 1, 1, 5);
  t.v_new = TensorView::bshd(v_new.data(), p.dtype, 1, 1, 1, 1);
  t.rotary_cos = TensorView::bshd(cos.data(), DType::kFloat32, 1, 4, 1, 2);
  t.rotary_sin = TensorView::bshd(sin.data(), DType::kFloat32, 1, 4, 1, 2);
  t.seqused_kv = &used;
  attn::reference::append(p, t);
  const std::vector<float> half(k.begin() + 10, k.begin() + 15);
  EXPECT_EQ(half, (std::vector<float>{-3, -2, 1, -4, 5}));  // pairs (1, 3) and (2, 4)
  EXPECT_EQ(v[2], 9.0F);
  EXPECT_EQ(v[3], 0.0F);
  p.rotary_style = attn::RotaryStyle::kInterleaved;
  attn::reference::append(p, t);
  const std::vector<float> interleaved(k.begin() + 10, k.begin() + 15);
  EXPECT_EQ(interleaved, (std::vector<float>{-2, 1, -3, -4, 5}));  // pairs (1, 2) and (3, 4)
}

}  // namespace
