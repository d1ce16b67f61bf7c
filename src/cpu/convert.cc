// Whole-array conversions and elementary functions of a level, and the rounding of finished rows.
// Tested in tests/unit/cpu_convert_test.cpp on every level.
#include "cpu/hwy_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/convert.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/convert-inl.h"
#include "cpu/kernels.hpp"
#include "cpu/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using V = hn::VFromD<D>;
constexpr size_t kLanes = HWY_LANES(float);

template <class In, class Out, class Function>
HWY_INLINE void Map(const In* in, size_t count, Out* out, const Function& function) {
  const D d;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreFloat(d, function(d, LoadFloat(d, in + i)), out + i);
  }
  if (i < count) {
    StoreFloatN(d, function(d, LoadFloatN(d, in + i, count - i)), out + i, count - i);
  }
}

// Function objects and not lambdas: a lambda would not carry the target's attributes with every compiler.
struct Same {
  HWY_INLINE V operator()(D /*d*/, V v) const { return v; }
};
struct ApplyExp2 {
  HWY_INLINE V operator()(D d, V v) const { return Exp2(d, v); }
};
struct ApplyTanh {
  HWY_INLINE V operator()(D d, V v) const { return Tanh(d, v); }
};

void ToFloat(const void* in, DType dtype, size_t count, float* out) {
  switch (dtype) {
    case DType::kFloat32:
      Map(static_cast<const float*>(in), count, out, Same());
      break;
    case DType::kFloat16:
      Map(static_cast<const Fp16*>(in), count, out, Same());
      break;
    case DType::kBFloat16:
      Map(static_cast<const Bf16*>(in), count, out, Same());
      break;
  }
}

void FromFloat(const float* in, DType dtype, size_t count, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      Map(in, count, static_cast<float*>(out), Same());
      break;
    case DType::kFloat16:
      Map(in, count, static_cast<Fp16*>(out), Same());
      break;
    case DType::kBFloat16:
      Map(in, count, static_cast<Bf16*>(out), Same());
      break;
  }
}

void Exp2Array(const float* in, size_t count, float* out) {
  Map(in, count, out, ApplyExp2());
}
void TanhArray(const float* in, size_t count, float* out) {
  Map(in, count, out, ApplyTanh());
}

// (o + o_low) / divisor. Where o is not finite, o_low means nothing and o alone counts. A sum that has
// underflown to −0 would lose its sign to the next tile, if there were one; adding 0 makes it +0 wherever the
// tiles of the row's neighbours end. There is one NaN: which of two NaN operands
// an instruction passes on, sign and all, depends on how many rows go through a kernel together.
//
// Rows of 16-bit types are multiplied by the divisor's reciprocal: another rounding of 2⁻²⁴, beside one of
// 2⁻⁹ or 2⁻¹², and a division takes as long as four fused products and sums.
template <bool kDivide>
HWY_INLINE V Finish(D d, V o, V o_low, V by) {
  const auto finite = hn::Le(hn::Abs(o), hn::Set(d, 3.402823466e38F));
  const V sum = hn::IfThenElse(finite, hn::Add(hn::Add(o, o_low), hn::Zero(d)), o);
  const V x = kDivide ? hn::Div(sum, by) : hn::Mul(sum, by);
  return hn::IfThenElse(hn::Eq(x, x), x, hn::Set(d, __builtin_nanf("")));
}

template <class T>
HWY_INLINE void StoreRowTo(const float* o, const float* o_low, float divisor, int dim, T* out) {
  const D d;
  const size_t count = static_cast<size_t>(dim);
  constexpr bool kDivide = sizeof(T) == sizeof(float);
  const V by = hn::Set(d, kDivide ? divisor : 1.0F / divisor);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreFloat(d, Finish<kDivide>(d, hn::LoadU(d, o + i), hn::LoadU(d, o_low + i), by), out + i);
  }
  if (i < count) {
    const size_t n = count - i;
    StoreFloatN(d, Finish<kDivide>(d, LoadFloatN(d, o + i, n), LoadFloatN(d, o_low + i, n), by), out + i, n);
  }
}

void StoreRow(const float* o, const float* o_low, float divisor, int dim, DType dtype, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      StoreRowTo(o, o_low, divisor, dim, static_cast<float*>(out));
      break;
    case DType::kFloat16:
      StoreRowTo(o, o_low, divisor, dim, static_cast<Fp16*>(out));
      break;
    case DType::kBFloat16:
      StoreRowTo(o, o_low, divisor, dim, static_cast<Bf16*>(out));
      break;
  }
}

void Fill(KernelTable* table) {
  table->lanes = static_cast<int>(kLanes);
  table->to_float = &ToFloat;
  table->from_float = &FromFloat;
  table->exp2 = &Exp2Array;
  table->tanh = &TanhArray;
  table->store_row = &StoreRow;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/fill_targets.hpp"

namespace attn::cpu {

void fill_convert_kernels(std::int64_t target, KernelTable* table) {
  ATTN_CPU_FILL(target, table);
}

}  // namespace attn::cpu
#endif
