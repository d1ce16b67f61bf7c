// Loads of fp32, fp16 and bf16 as vectors of fp32, and stores back, rounded to nearest even: bit for bit what
// core/numeric.hpp does one at a time. Tested over every bit pattern and exponent on every level in
// tests/unit/cpu_convert_test.cpp.
#if defined(ATTN_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_CONVERT_INL_H_
#undef ATTN_CPU_CONVERT_INL_H_
#else
#define ATTN_CPU_CONVERT_INL_H_
#endif

#include "hwy/highway.h"

// Whether the target's own fp16 conversions exist (F16C is part of Highway's AVX2; every A64 has them).
#undef ATTN_CPU_NATIVE_FP16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)) || \
    (HWY_ARCH_ARM_A64 && HWY_TARGET != HWY_SCALAR)
#define ATTN_CPU_NATIVE_FP16 1
#else
#define ATTN_CPU_NATIVE_FP16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace attn::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Asks for a row of dim elements ahead of its use: with a key's heads side by side in memory, the rows of a
// head lie pages apart, where hardware prefetching does not follow.
template <class T>
HWY_INLINE void PrefetchRow(const void* row, size_t dim) {
  for (size_t at = 0; at < dim * sizeof(T); at += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + at);
  }
}

// Element types; the 16-bit ones are told apart by type only.
struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

template <class D>
HWY_INLINE hn::VFromD<D> LoadFloat(D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::VFromD<D> LoadFloat(D d, const Bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

#if ATTN_CPU_NATIVE_FP16
template <class D>
HWY_INLINE hn::VFromD<D> LoadFloat(D d, const Fp16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE void StoreFloat(D /*d*/, V v, Fp16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
}
#else
template <class D>
HWY_INLINE hn::VFromD<D> LoadFloat(D d, const Fp16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<int32_t, D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000)));
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFF));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(d32, 112 << 23));
  // Subnormals are small integers times 2⁻²⁴; no fp32 subnormal is touched, whatever the caller's DAZ says.
  const auto subnormal =
      hn::BitCast(d32, hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 5.9604644775390625e-8F)));
  const auto infinite = hn::Add(shifted, hn::Set(d32, 224 << 23));
  const auto nan = hn::Or(infinite, hn::Set(d32, 0x00400000));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x0400)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7BFF)), infinite, result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7C00)), nan, result);
  return hn::BitCast(d, hn::Or(result, sign));
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE void StoreFloat(D d, V v, Fp16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<int32_t, D> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFFFFFF));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000));
  const auto nan = hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x3FF)), hn::Set(d32, 0x7E00));
  const auto rebased = hn::Sub(magnitude, hn::Set(d32, 112 << 23));
  const auto odd = hn::And(hn::ShiftRight<13>(rebased), hn::Set(d32, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(rebased, hn::Set(d32, 0xFFF)), odd));
  const auto halved = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(d32, halved), hn::Set(d32, 0x3F000000));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x38800000)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x477FEFFF)), hn::Set(d32, 0x7C00), result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7F800000)), nan, result);
  hn::StoreU(hn::DemoteTo(d16, hn::Or(result, sign)), d16, reinterpret_cast<uint16_t*>(p));
}
#endif

template <class D, class V = hn::VFromD<D>>
HWY_INLINE void StoreFloat(D d, V v, float* p) {
  hn::StoreU(v, d, p);
}

template <class D, class V = hn::VFromD<D>>
HWY_INLINE void StoreFloat(D /*d*/, V v, Bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<int32_t, D> d32;
  const hn::Rebind<uint32_t, D> du32;
  const auto bits = hn::BitCast(du32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du32, 0x7FFF)), odd));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du32, 0x0040));
  const auto magnitude = hn::BitCast(d32, hn::And(bits, hn::Set(du32, 0x7FFFFFFF)));
  const auto is_nan = hn::Gt(magnitude, hn::Set(d32, 0x7F800000));
  const auto result = hn::IfThenElse(is_nan, hn::BitCast(d32, nan), hn::BitCast(d32, rounded));
  hn::StoreU(hn::DemoteTo(d16, result), d16, reinterpret_cast<uint16_t*>(p));
}

// The first n < Lanes(d) elements, zeros behind them; nothing beyond is read or written.
template <class D, class T>
HWY_INLINE hn::VFromD<D> LoadFloatN(D d, const T* p, size_t n) {
  T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  for (size_t i = 0; i < n; ++i) {
    buffer[i] = p[i];
  }
  return LoadFloat(d, buffer);
}

template <class D, class T, class V = hn::VFromD<D>>
HWY_INLINE void StoreFloatN(D d, V v, T* p, size_t n) {
  T buffer[HWY_MAX_BYTES / sizeof(float)];
  StoreFloat(d, v, buffer);
  for (size_t i = 0; i < n; ++i) {
    p[i] = buffer[i];
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
