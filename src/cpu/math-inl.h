// exp2 and tanh for vectors of fp32, per Highway target. Errors are stated at each and tested on every level
// in tests/unit/cpu_kernels_test.cpp. No std:: function may be used here: an inline one would be compiled
// for the target and could be merged with the baseline's copy.
#if defined(ATTN_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_MATH_INL_H_
#undef ATTN_CPU_MATH_INL_H_
#else
#define ATTN_CPU_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// (2^f − 1) / f on [−0.5, 0.5] as a polynomial of degree 5. Remez fit under the weight f / 2^f, so that
// 1 + f · q(f) has a relative error of 0.05 · 2⁻²⁴ before rounding and is exact at 0.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Exp2m1Quotient(D d, V f) {
  V q = hn::Set(d, 1.55946778e-4F);
  q = hn::MulAdd(q, f, hn::Set(d, 1.34066434e-3F));
  q = hn::MulAdd(q, f, hn::Set(d, 9.61769279e-3F));
  q = hn::MulAdd(q, f, hn::Set(d, 5.55031039e-2F));
  q = hn::MulAdd(q, f, hn::Set(d, 2.40226522e-1F));
  return hn::MulAdd(q, f, hn::Set(d, 6.93147242e-1F));
}

// 1.5 · 2²³ + 127: adding it rounds to a whole number n and leaves n + 127, a float's exponent field, in the
// low bits of the sum.
constexpr float kRoundBiased = 12583039.0F;

// 2^x for x < 128, within 2 ulp; exact at whole numbers. Below −126 the result is 0, so −inf gives 0; NaN
// gives NaN.
#if HWY_TARGET == HWY_AVX3
// Fraction and power by one instruction each, 11 for the two arithmetic ports instead of 14 (4.9 against 7.5
// cycles a vector on Sapphire Rapids). (2^f − 1) / f on [0, 1], Remez fit as above: 0.03 · 2⁻²⁴ before
// rounding. Lanes below −126 are masked off: a subnormal result costs the processor some 200 cycles.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Exp2(D d, V x) {
  constexpr int kDownTo0Bits = 1;  // of VREDUCEPS: x − ⌊x⌋
  const V f{_mm512_reduce_ps(x.raw, kDownTo0Bits)};
  V q = hn::Set(d, 2.16129149e-4F);
  q = hn::MulAdd(q, f, hn::Set(d, 1.2467847e-3F));
  q = hn::MulAdd(q, f, hn::Set(d, 9.67545155e-3F));
  q = hn::MulAdd(q, f, hn::Set(d, 5.54852821e-2F));
  q = hn::MulAdd(q, f, hn::Set(d, 2.40229309e-1F));
  q = hn::MulAdd(q, f, hn::Set(d, 6.93147063e-1F));
  const V fraction = hn::MulAdd(q, f, hn::Set(d, 1.0F));
  const __mmask16 keep = _mm512_cmp_ps_mask(x.raw, hn::Set(d, -126.0F).raw, _CMP_NLT_UQ);  // NaN too
  return V{_mm512_maskz_scalef_ps(keep, fraction.raw, x.raw)};
}
#else
// The last step is a product and not an addition to the exponent so that NaN stays NaN.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, kRoundBiased);
  const V biased = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(biased, magic));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, biased)));
  const V fraction = hn::MulAdd(Exp2m1Quotient(d, f), f, hn::Set(d, 1.0F));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0F)), hn::Mul(fraction, power));
}
#endif

// tanh within 5 ulp at any magnitude, by e^(2|y|) − 1 =: m, tanh = m / (m + 2), where m keeps its relative
// accuracy near 0. From |y| = 10 on exactly ±1. NaN gives NaN.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Tanh(D d, V y) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, kRoundBiased);
  const V limit = hn::Set(d, 10.0F);
  const V magnitude = hn::Abs(y);
  // Not Min, whose result for NaN differs between targets.
  const V a = hn::IfThenElse(hn::Gt(magnitude, limit), limit, magnitude);
  const V x = hn::Mul(a, hn::Set(d, 2.885390082F));  // 2 · log2(e)
  const V biased = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(biased, magic));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, biased)));
  const V fraction_minus_1 = hn::Mul(Exp2m1Quotient(d, f), f);
  const V m = hn::MulAdd(fraction_minus_1, power, hn::Sub(power, hn::Set(d, 1.0F)));
  return hn::CopySign(hn::Div(m, hn::Add(m, hn::Set(d, 2.0F))), y);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
