// See amx.hpp.
//
// Layouts, for bf16 and steps of 32 (kAmxStep):
//   Q  [channel step][row][32 channels]                  a row of an A tile is 64 bytes
//   K  [32 keys][channel pair][key][2]                   B tiles of 16 pairs × 16 keys, 128 bytes from row to
//   row V  [32 columns][key pair][column][2]                 likewise S  rows × kScoreStride floats; P as
//   bf16 in place at the beginning of each row: again an A tile
// Channels and columns are padded with zeros to whole steps. A register tile is 32 × 32: two A and two B
// tiles are loaded for four products, so that the loads (8 cycles a tile) hide beneath the products (16 a
// tile).
//
// The tile products take subnormal bf16 for zero and flush subnormal results. What that could change is found
// when packing: subnormal elements of Q and K, and elements of V below 2⁻¹⁰⁰, whose products with
// probabilities that matter could be flushed. The caller does those exactly (tile_exact.cpp).
#include "cpu/amx.hpp"

#if ATTN_HAVE_AMX

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of _mm512_undefined_epi32 in its own header (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "hwy/base.h"

// Every function between here and the end of the namespace is compiled for this target. No std:: function
// may be used there: an inline one could be merged with the baseline's copy.
#define ATTN_AMX_TARGET \
  "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16"
HWY_PUSH_ATTRIBUTES(ATTN_AMX_TARGET)
namespace attn::cpu::N_AVX3_AMX {
namespace {

constexpr int kTileRows = 16;
constexpr int kBlockRows = 32;
constexpr int kLanes = 16;
constexpr std::size_t kStepBytes = kAmxStep * sizeof(std::uint16_t);  // of a row of an A tile
constexpr std::size_t kPairBytes = kAmxStep * 2 * sizeof(std::uint16_t);
constexpr std::size_t kScoreBytes = kScoreStride * sizeof(float);

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
constexpr TileConfig kConfig;

void Enter() {
  _tile_loadconfig(&kConfig);
}

void Leave() {
  _tile_release();
}

// The first n of 32 elements, zeros behind them; nothing beyond is read.
HWY_INLINE __m512i LoadStep(const std::uint16_t* p, int n) {
  if (n >= kAmxStep) {
    return _mm512_loadu_si512(p);
  }
  return n <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16((1U << static_cast<unsigned>(n)) - 1U, p);
}

HWY_INLINE __mmask32 Subnormals(__m512i x) {
  return _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x7F80)) &
         _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x007F));
}

// Not finite, or nonzero and below 2⁻¹⁰⁰.
HWY_INLINE __mmask32 Unfit(__m512i x) {
  constexpr short kLeast = (127 - 100) << 7;
  const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
  const __m512i less_1 = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1));
  return _mm512_cmplt_epu16_mask(less_1, _mm512_set1_epi16(kLeast - 1)) |
         _mm512_cmpge_epu16_mask(magnitude, _mm512_set1_epi16(0x7F80));
}

bool PackQ(const void* const* rows, int count, int padded, int dim, DType /*dtype*/, float* /*stage*/,
           void* packed) {
  auto* out = static_cast<std::uint16_t*>(packed);
  __mmask32 subnormal = 0;
  for (int c = 0; c < dim; c += kAmxStep) {
    for (int r = 0; r < padded; ++r) {
      const __m512i x = r < count ? LoadStep(static_cast<const std::uint16_t*>(rows[r]) + c, dim - c)
                                  : _mm512_setzero_si512();
      subnormal |= Subnormals(x);
      _mm512_store_si512(out, x);
      out += kAmxStep;
    }
  }
  return subnormal == 0;
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

HWY_INLINE void PrefetchRow(const void* row, int dim) {
  for (int at = 0; at < dim * 2; at += 64) {
    _mm_prefetch(static_cast<const char*>(row) + at, _MM_HINT_T0);
  }
}

bool PackK(const void* const* rows, int num_keys, int dim, DType /*dtype*/, float* /*stage*/, void* panels) {
  constexpr int kAhead = 16;
  auto* out = static_cast<std::uint32_t*>(panels);
  __mmask32 subnormal = 0;
  const std::size_t panel_words = static_cast<std::size_t>(round_up(dim)) / 2 * kAmxStep;
  for (int first = 0; first < num_keys; first += kTileRows) {
    for (int r = 0; r < kTileRows; ++r) {
      const int ahead = first + kAhead + r;
      if (ahead < num_keys) {
        PrefetchRow(rows[ahead], dim);
      }
    }
    std::uint32_t* half = out + static_cast<std::size_t>(first / kAmxStep) * panel_words + first % kAmxStep;
    for (int c = 0; c < dim; c += kAmxStep) {
      __m512i x[kTileRows];
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        x[r] = LoadStep(static_cast<const std::uint16_t*>(rows[first + r]) + c, dim - c);
        subnormal |= Subnormals(x[r]);
      }
      Transpose16(x, half + static_cast<std::size_t>(c / 2) * kAmxStep);
    }
  }
  return subnormal == 0;
}

bool PackV(const void* const* rows, int begin, int end, int dim, DType /*dtype*/, int panel_stride,
           void* panels) {
  constexpr int kAhead = 16;
  alignas(64) std::uint16_t low[32];
  alignas(64) std::uint16_t high[32];
  for (int i = 0; i < 16; ++i) {
    low[2 * i] = static_cast<std::uint16_t>(i);
    low[2 * i + 1] = static_cast<std::uint16_t>(32 + i);
    high[2 * i] = static_cast<std::uint16_t>(16 + i);
    high[2 * i + 1] = static_cast<std::uint16_t>(48 + i);
  }
  const __m512i take_low = _mm512_load_si512(low);
  const __m512i take_high = _mm512_load_si512(high);
  __mmask32 unfit = 0;
  for (int key = begin; key < end; key += 2) {
    if (key + kAhead + 1 < end) {
      PrefetchRow(rows[key + kAhead], dim);
      PrefetchRow(rows[key + kAhead + 1], dim);
    }
    const auto* even = static_cast<const std::uint16_t*>(rows[key]);
    const auto* odd = static_cast<const std::uint16_t*>(rows[key + 1]);
    for (int c = 0; c < dim; c += kAmxStep) {
      const __m512i a = LoadStep(even + c, dim - c);
      const __m512i b = LoadStep(odd + c, dim - c);
      unfit |= Unfit(a) | Unfit(b);
      char* out = static_cast<char*>(panels) +
                  (static_cast<std::size_t>(c) / kAmxStep * static_cast<std::size_t>(panel_stride) +
                   static_cast<std::size_t>(key)) /
                      2 * kPairBytes;
      _mm512_store_si512(out, _mm512_permutex2var_epi16(a, take_low, b));
      _mm512_store_si512(out + 64, _mm512_permutex2var_epi16(a, take_high, b));
    }
  }
  return unfit == 0;
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

// One step: the sums += A (rows kRowBytes apart) · B (pairs).
template <std::size_t kRowBytes>
HWY_INLINE void AddStep(const char* a, const char* b, bool two) {
  _tile_loadd(4, a, kRowBytes);
  _tile_loadd(6, b, kPairBytes);
  _tile_loadd(7, b + 64, kPairBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (two) {
    _tile_loadd(5, a + kTileRows * kRowBytes, kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

void Scale(float* s, int rows, int begin, int end, float factor) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int r = 0; r < rows; ++r) {
    for (int j = begin; j < end; j += kLanes) {
      float* at = s + r * kScoreStride + j;
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), by));
    }
  }
}

void Scores(const void* q, int rows, int dim, const void* panels, int panel_begin, int panel_end,
            float factor, float* s) {
  const int steps = round_up(dim) / kAmxStep;
  const bool two = rows > kTileRows;
  const std::size_t q_step = static_cast<std::size_t>(rows) * kStepBytes;
  const std::size_t k_step = kAmxStep / 2 * kPairBytes;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const char* k = static_cast<const char*>(panels) +
                    static_cast<std::size_t>(panel) * static_cast<std::size_t>(steps) * k_step;
    const char* a = static_cast<const char*>(q);
    ZeroSums(two);
    for (int step = 0; step < steps; ++step) {
      AddStep<kStepBytes>(a, k, two);
      a += q_step;
      k += k_step;
    }
    float* out = s + panel * kAmxStep;
    _tile_stored(0, out, kScoreBytes);
    _tile_stored(1, out + kTileRows, kScoreBytes);
    if (two) {
      _tile_stored(2, out + kTileRows * kScoreStride, kScoreBytes);
      _tile_stored(3, out + kTileRows * kScoreStride + kTileRows, kScoreBytes);
    }
  }
  if (factor != 1.0F) {
    Scale(s, rows, panel_begin * kAmxStep, panel_end * kAmxStep, factor);
  }
}

// 2^x as in math-inl.h with a polynomial of two degrees less: (2^f − 1) / f on [0, 1] of degree 3, Remez fit,
// a relative error of 2⁻¹⁸ (bf16 rounds at 2⁻⁹). Exact at whole numbers, 0 below −126, NaN for NaN.
HWY_INLINE __m512 Exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 1);  // x − ⌊x⌋
  __m512 q = _mm512_set1_ps(1.34266838e-2F);
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(5.22424728e-2F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(2.41280198e-1F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(6.93044841e-1F));
  const __m512 fraction = _mm512_fmadd_ps(q, f, _mm512_set1_ps(1.0F));
  const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(keep, fraction, x);
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

// Four rows: scores to probabilities in bf16, in place; maxima, sums and rescales as softmax.cc keeps them.
HWY_INLINE void SoftmaxRows(const SoftmaxBlock& block, int row) {
  const float minus_infinity = -__builtin_inff();
  float* s[4];
  __m512 m[4];
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
  const __m128 factor = _mm_set1_ps(block.factor);
  const __m128 before = _mm_loadu_ps(block.row_max + row);
  // As `tile > before ? tile : before`: a NaN does not become the maximum.
  const __m128 top = _mm_max_ps(_mm_mul_ps(Reduce4(Max(), m), factor), before);
  _mm_storeu_ps(block.row_max + row, top);
  const __m128 nothing = _mm_cmpeq_ps(top, _mm_set1_ps(minus_infinity));
  const __m128 subtract = _mm_andnot_ps(nothing, top);
  alignas(16) float less[4];
  _mm_store_ps(less, subtract);
  _mm_storeu_ps(block.rescale + row, _mm_sub_ps(before, subtract));

  __m512 sum[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const __m512 base = _mm512_set1_ps(less[r]);
    __m512 by = _mm512_set1_ps(block.factor);
    if (!(less[r] <= kFusedMax && less[r] >= -kFusedMax)) {
      Scale(s[r], 1, block.begin, block.end, block.factor);
      by = _mm512_set1_ps(1.0F);
    }
    __m512 sum0 = _mm512_setzero_ps();
    __m512 sum1 = sum0;
    auto* p = reinterpret_cast<char*>(s[r]);
    for (int j = block.begin; j < block.end; j += 2 * kLanes) {
      const __m512 p0 = Exp2(_mm512_fmsub_ps(_mm512_load_ps(s[r] + j), by, base));
      const __m512 p1 = Exp2(_mm512_fmsub_ps(_mm512_load_ps(s[r] + j + kLanes), by, base));
      sum0 = _mm512_add_ps(sum0, p0);
      sum1 = _mm512_add_ps(sum1, p1);
      const __m512bh pair = _mm512_cvtne2ps_pbh(p1, p0);
      std::memcpy(p + j * 2, &pair, sizeof(pair));
    }
    sum[r] = _mm512_add_ps(sum0, sum1);
  }
  // The tile's sums, until the rescales are known.
  _mm_storeu_ps(block.row_sum_low + row, Reduce4(Add(), sum));
}

// 2^x, as precise as avx3's: rescales multiply up over the tiles.
HWY_INLINE __m512 Exp2Precise(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 1);
  __m512 q = _mm512_set1_ps(2.16129149e-4F);
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(1.2467847e-3F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(9.67545155e-3F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(5.54852821e-2F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(2.40229309e-1F));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(6.93147063e-1F));
  const __m512 fraction = _mm512_fmadd_ps(q, f, _mm512_set1_ps(1.0F));
  const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(keep, fraction, x);
}

// Rows are taken by fours: block.s and the row arrays have room for kMaxBlockRows, a multiple of four. Sums
// are plain fp32 (row_sum_low is scratch): bf16 asks for no more.
void Softmax(const SoftmaxBlock& block) {
  for (int row = 0; row < block.rows; row += 4) {
    SoftmaxRows(block, row);
  }
  for (int row = 0; row < block.rows; row += kLanes) {
    const __m512 rescale = Exp2Precise(_mm512_loadu_ps(block.rescale + row));
    const __m512 sum = _mm512_fmadd_ps(_mm512_loadu_ps(block.row_sum + row), rescale,
                                       _mm512_loadu_ps(block.row_sum_low + row));
    _mm512_storeu_ps(block.rescale + row, rescale);
    _mm512_storeu_ps(block.row_sum + row, sum);
    _mm512_storeu_ps(block.row_sum_low + row, _mm512_setzero_ps());
  }
}

void Accumulate(const Accumulation& acc, const void* panels, int panel_stride, int dim) {
  const bool two = acc.rows > kTileRows;
  const int step_begin = acc.begin / kAmxStep;
  const int step_end = round_up(acc.end) / kAmxStep;
  alignas(64) float sums[kBlockRows * kAmxStep];
  const std::size_t panel_bytes = static_cast<std::size_t>(panel_stride) / 2 * kPairBytes;
  for (int column = 0; column < dim; column += kAmxStep) {
    const bool wide = dim - column > kTileRows;
    const char* v = static_cast<const char*>(panels) +
                    static_cast<std::size_t>(column / kAmxStep) * panel_bytes +
                    static_cast<std::size_t>(step_begin) * (kAmxStep / 2) * kPairBytes;
    const char* p = reinterpret_cast<const char*>(acc.p) + static_cast<std::size_t>(step_begin) * kStepBytes;
    ZeroSums(two);
    for (int step = step_begin; step < step_end; ++step) {
      AddStep<kScoreBytes>(p, v, two);
      p += kStepBytes;
      v += kAmxStep / 2 * kPairBytes;
    }
    _tile_stored(0, sums, kAmxStep * sizeof(float));
    _tile_stored(1, sums + kTileRows, kAmxStep * sizeof(float));
    if (two) {
      _tile_stored(2, sums + kTileRows * kAmxStep, kAmxStep * sizeof(float));
      _tile_stored(3, sums + kTileRows * kAmxStep + kTileRows, kAmxStep * sizeof(float));
    }
    for (int r = 0; r < acc.rows; ++r) {
      const __m512 rescale = _mm512_set1_ps(acc.rescale[r]);
      float* o = acc.o + static_cast<std::ptrdiff_t>(r) * acc.o_stride + column;
      const float* x = sums + r * kAmxStep;
      _mm512_store_ps(o, _mm512_fmadd_ps(_mm512_load_ps(o), rescale, _mm512_load_ps(x)));
      if (wide) {
        _mm512_store_ps(o + kLanes,
                        _mm512_fmadd_ps(_mm512_load_ps(o + kLanes), rescale, _mm512_load_ps(x + kLanes)));
      }
    }
  }
}

}  // namespace

void Fill(KernelTable* table) {
  table->bf16_tiles = true;
  table->block_rows = kBlockRows;
  table->block_granule = kTileRows;
  table->panel_keys = kAmxStep;
  table->enter = &Enter;
  table->leave = &Leave;
  table->pack_q = &PackQ;
  table->pack_k = &PackK;
  table->pack_v = &PackV;
  table->scores = &Scores;
  table->softmax = &Softmax;
  table->accumulate = &Accumulate;
}

}  // namespace attn::cpu::N_AVX3_AMX
HWY_POP_ATTRIBUTES

namespace attn::cpu {
namespace {

bool ask() {
  // Intel SDM, CPUID: leaf 7 subleaf 0 EDX bits 22 (AMX-BF16) and 24 (AMX-TILE), subleaf 1 EAX bit 5
  // (AVX512_BF16); leaf 1 ECX bit 27 (OSXSAVE). XCR0 bits 17 and 18: the system saves tiles.
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1U) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d >> 22 & 1U) == 0 || (d >> 24 & 1U) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a >> 5 & 1U) == 0) {
    return false;
  }
  unsigned low = 0;
  unsigned high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3U) != 3U) {
    return false;
  }
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16, asm/prctl.h
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_usable() noexcept {
  static const bool usable = ask();
  return usable;
}

void fill_amx_kernels(KernelTable* table) {
  N_AVX3_AMX::Fill(table);
}

}  // namespace attn::cpu

#else  // a compiler or a system without AMX

namespace attn::cpu {

bool amx_usable() noexcept {
  return false;
}

void fill_amx_kernels(KernelTable* /*table*/) {}

}  // namespace attn::cpu

#endif
