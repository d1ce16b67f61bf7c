// What the kernels of amx.cpp and amx_parts.cpp share: the tile registers' configuration and sums,
// transpositions, reductions, exp2.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of _mm512_undefined_epi32 in its own header (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstring>

#include "cpu/amx.hpp"
#include "hwy/base.h"

// Every function between here and the end of the namespace is compiled for this target. No std:: function
// may be used there: an inline one could be merged with the baseline's copy.
#define ATTN_AMX_TARGET \
  "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16"
HWY_PUSH_ATTRIBUTES(ATTN_AMX_TARGET)
namespace attn::cpu::N_AVX3_AMX {

inline constexpr int kTileRows = 16;
inline constexpr int kBlockRows = 32;
inline constexpr int kLanes = 16;
inline constexpr std::size_t kStepBytes = kAmxStep * sizeof(std::uint16_t);  // of a row of an A tile
inline constexpr std::size_t kPairBytes = kAmxStep * 2 * sizeof(std::uint16_t);
inline constexpr std::size_t kScoreBytes = kScoreStride * sizeof(float);

constexpr int round_up(int n) {
  return (n + kAmxStep - 1) / kAmxStep * kAmxStep;
}

// Intel SDM, LDTILECFG: palette 1, eight tiles of 16 rows × 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr TileConfig kConfig;

inline void Enter() {
  _tile_loadconfig(&kConfig);
}

inline void Leave() {
  _tile_release();
}

// The float whose upper half these bits are.
inline float Upper(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16U;
  float x = 0;
  std::memcpy(&x, &word, sizeof(x));
  return x;
}

// x times kSmallScale, below 2⁻³⁰, where the mask is set, else 0. By its bits where it is subnormal:
// multiplying such numbers takes the processor some 100 cycles.
HWY_INLINE __m512 TimesSmallScale(__mmask16 which, __m512 x) {
  constexpr int kExponents = 96 << 23;
  static_assert(kSmallScale == 0x1p96F);
  const __m512i sign_bit = _mm512_set1_epi32(static_cast<int>(0x80000000U));
  const __m512i magnitude = _mm512_andnot_si512(sign_bit, _mm512_castps_si512(x));
  const __m512i sign = _mm512_and_si512(sign_bit, _mm512_castps_si512(x));
  const __mmask16 subnormal = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(0x00800000));
  const __m512 of_subnormal =
      _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-149F * kSmallScale));
  const __m512i scaled = _mm512_mask_add_epi32(_mm512_castps_si512(of_subnormal), _knot_mask16(subnormal),
                                               magnitude, _mm512_set1_epi32(kExponents));
  return _mm512_castsi512_ps(_mm512_maskz_or_epi32(which, scaled, sign));
}

// 16 rows of 16 32-bit words, in rows of 16 words; out: rows of 32 words.
HWY_INLINE void Transpose16(const __m512i* HWY_RESTRICT in, std::uint32_t* HWY_RESTRICT out) {
  __m512i a[16];
  __m512i b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4 i + j]: word 4 l + j of rows 4 i … 4 i + 3 in 128-bit block l.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);       // blocks 0, 2 of rows 0-3, 4-7
    const __m512i high01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xDD);      // blocks 1, 3
    const __m512i low23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);  // of rows 8-11, 12-15
    const __m512i high23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xDD);
    _mm512_store_si512(out + (0 + j) * kAmxStep, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_store_si512(out + (4 + j) * kAmxStep, _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_store_si512(out + (8 + j) * kAmxStep, _mm512_shuffle_i32x4(low01, low23, 0xDD));
    _mm512_store_si512(out + (12 + j) * kAmxStep, _mm512_shuffle_i32x4(high01, high23, 0xDD));
  }
}

HWY_INLINE void PrefetchRow(const void* row, int bytes) {
  for (int at = 0; at < bytes; at += 64) {
    _mm_prefetch(static_cast<const char*>(row) + at, _MM_HINT_T0);
  }
}

// Tiles: 0 to 3 the sums (row half · 2 + column half), 4 and 5 of A, 6 and 7 of B.
HWY_INLINE void ZeroSums(bool two) {
  _tile_zero(0);
  _tile_zero(1);
  if (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

HWY_INLINE void LoadSums(const float* in, int stride, bool two) {
  const std::size_t bytes = static_cast<std::size_t>(stride) * sizeof(float);
  _tile_loadd(0, in, bytes);
  _tile_loadd(1, in + kTileRows, bytes);
  if (two) {
    const float* below = in + static_cast<std::ptrdiff_t>(kTileRows) * stride;
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + kTileRows, bytes);
  }
}

// The sums to rows of memory, stride floats apart.
HWY_INLINE void StoreSums(float* out, int stride, bool two) {
  const std::size_t bytes = static_cast<std::size_t>(stride) * sizeof(float);
  _tile_stored(0, out, bytes);
  _tile_stored(1, out + kTileRows, bytes);
  if (two) {
    float* below = out + static_cast<std::ptrdiff_t>(kTileRows) * stride;
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + kTileRows, bytes);
  }
}

inline void Scale(float* s, int rows, int begin, int end, float factor) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int r = 0; r < rows; ++r) {
    for (int j = begin; j < end; j += kLanes) {
      float* at = s + r * kScoreStride + j;
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), by));
    }
  }
}

struct Max {
  HWY_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};
struct Add {
  HWY_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};

// The lanes of each of four vectors, combined.
template <class Op>
HWY_INLINE __m128 Reduce4(Op op, const __m512* v) {
  const __m512 ab = op(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = op(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d ab64 = _mm512_castps_pd(ab);
  const __m512d cd64 = _mm512_castps_pd(cd);
  const __m512 all =
      op(_mm512_castpd_ps(_mm512_unpacklo_pd(ab64, cd64)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab64, cd64)));
  const __m512 halves = op(all, _mm512_shuffle_f32x4(all, all, 0x4E));
  return _mm512_castps512_ps128(op(halves, _mm512_shuffle_f32x4(halves, halves, 0xB1)));
}

// (1 + q · f) · 2^⌊x⌋, 0 for x below −126.
HWY_INLINE __m512 PowerOf(__m512 x, __m512 f, __m512 q) {
  const __m512 fraction = _mm512_fmadd_ps(q, f, _mm512_set1_ps(1.0F));
  const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(keep, fraction, x);
}

// 2^x as in math-inl.h with a polynomial of two degrees less: (2^f − 1) / f on [0, 1] of degree 3, Remez fit,
// a relative error of 2⁻¹⁸ (bf16 rounds at 2⁻⁹, two parts of it at 2⁻¹⁷). Exact at whole numbers, 0 below
// −126, NaN for NaN.
HWY_INLINE __m512 Exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 1);  // x − ⌊x⌋
  __m512 q = _mm512_set1_ps(1.34266838e-2F);
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(5.22424728e-2F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(2.41280198e-1F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(6.93044841e-1F));
  return PowerOf(x, f, q);
}

// 2^x, as precise as avx3's. (Rescales multiply up over the tiles.)
HWY_INLINE __m512 Exp2Precise(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 1);
  __m512 q = _mm512_set1_ps(2.16129149e-4F);
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(1.2467847e-3F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(9.67545155e-3F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(5.54852821e-2F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(2.40229309e-1F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(6.93147063e-1F));
  return PowerOf(x, f, q);
}

// Four rows' maxima by their new scores; what is to be subtracted from the scores (less, 16-byte aligned),
// and the rescales' exponents.
HWY_INLINE void RaiseMaxima(const SoftmaxBlock& block, int row, float* less) {
  const float minus_infinity = -__builtin_inff();
  const float* s[4];
  __m512 m[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    s[r] = block.s + (row + r) * kScoreStride;
    m[r] = _mm512_set1_ps(minus_infinity);
  }
  for (int j = block.begin; j < block.end; j += kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      m[r] = _mm512_max_ps(m[r], _mm512_load_ps(s[r] + j));
    }
  }
  const __m128 before = _mm_loadu_ps(block.row_max + row);
  // As `tile > before ? tile : before`: a NaN does not become the maximum.
  const __m128 top = _mm_max_ps(_mm_mul_ps(Reduce4(Max(), m), _mm_set1_ps(block.factor)), before);
  _mm_storeu_ps(block.row_max + row, top);
  const __m128 nothing = _mm_cmpeq_ps(top, _mm_set1_ps(minus_infinity));
  const __m128 subtract = _mm_andnot_ps(nothing, top);
  _mm_store_ps(less, subtract);
  _mm_storeu_ps(block.rescale + row, _mm_sub_ps(before, subtract));
}

}  // namespace attn::cpu::N_AVX3_AMX
HWY_POP_ATTRIBUTES
