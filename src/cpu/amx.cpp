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
// probabilities that matter could be flushed. The caller does the former exactly (tile_exact.cpp); the latter
// go through the products times kSmallScale.
#include "cpu/amx.hpp"

#if ATTN_HAVE_AMX

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "cpu/amx-inl.h"

HWY_PUSH_ATTRIBUTES(ATTN_AMX_TARGET)
namespace attn::cpu::N_AVX3_AMX {
namespace {

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

bool PackK(const void* const* rows, int num_keys, int dim, DType /*dtype*/, float* /*stage*/, void* panels) {
  constexpr int kAhead = 16;
  auto* out = static_cast<std::uint32_t*>(panels);
  __mmask32 subnormal = 0;
  const std::size_t panel_words = static_cast<std::size_t>(round_up(dim)) / 2 * kAmxStep;
  for (int first = 0; first < num_keys; first += kTileRows) {
    for (int r = 0; r < kTileRows; ++r) {
      const int ahead = first + kAhead + r;
      if (ahead < num_keys) {
        PrefetchRow(rows[ahead], dim * 2);
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

// 32 columns of a pair of keys to their pairs of words.
class PairColumns {
 public:
  PairColumns() {
    alignas(64) std::uint16_t low[32];
    alignas(64) std::uint16_t high[32];
    for (int i = 0; i < 16; ++i) {
      low[2 * i] = static_cast<std::uint16_t>(i);
      low[2 * i + 1] = static_cast<std::uint16_t>(32 + i);
      high[2 * i] = static_cast<std::uint16_t>(16 + i);
      high[2 * i + 1] = static_cast<std::uint16_t>(48 + i);
    }
    low_ = _mm512_load_si512(low);
    high_ = _mm512_load_si512(high);
  }
  HWY_INLINE void Store(__m512i a, __m512i b, char* out) const {
    _mm512_store_si512(out, _mm512_permutex2var_epi16(a, low_, b));
    _mm512_store_si512(out + 64, _mm512_permutex2var_epi16(a, high_, b));
  }

 private:
  __m512i low_;
  __m512i high_;
};

// All of V.
struct WholeTile {
  char* panels;
  PairColumns columns;
  __mmask32 unfit = 0;
  HWY_INLINE void Pair(__m512i a, __m512i b, std::size_t at) {
    unfit |= Unfit(a) | Unfit(b);
    columns.Store(a, b, panels + at);
  }
};

// V without what does not fit, and what is small in a tile of its own.
struct SplitTile {
  char* panels;
  char* small;
  PairColumns columns;
  __mmask32 poison = 0;
  __mmask32 less = 0;
  HWY_INLINE void Pair(__m512i a, __m512i b, std::size_t at) {
    const Parted x = Part(a);
    const Parted y = Part(b);
    columns.Store(x.fitting, y.fitting, panels + at);
    columns.Store(x.small, y.small, small + at);
  }

 private:
  struct Parted {
    __m512i fitting;
    __m512i small;
  };
  HWY_INLINE Parted Part(__m512i x) {
    const __mmask32 unfit = Unfit(x);
    const __mmask32 is_less = unfit & _mm512_cmplt_epu16_mask(_mm512_and_si512(x, _mm512_set1_epi16(0x7FFF)),
                                                              _mm512_set1_epi16(0x7F80));
    poison |= unfit & ~is_less;
    less |= is_less;
    const __m256i lower = SmallHalf(is_less, _mm512_castsi512_si256(x));
    const __m256i upper = SmallHalf(is_less >> 16U, _mm512_extracti64x4_epi64(x, 1));
    return {_mm512_maskz_mov_epi16(~unfit, x), _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1)};
  }
  HWY_INLINE static __m256i SmallHalf(__mmask32 which, __m256i x) {
    const __m512 floats = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    const __m512 scaled = TimesSmallScale(static_cast<__mmask16>(which), floats);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(scaled), 16));
  }
};

// 32 elements of each of a pair of keys, and where they lie in the tile.
template <class Take>
HWY_INLINE void EachPair(const void* const* rows, int begin, int end, int dim, int panel_stride, Take* take) {
  constexpr int kAhead = 16;
  for (int key = begin; key < end; key += 2) {
    if (key + kAhead + 1 < end) {
      PrefetchRow(rows[key + kAhead], dim * 2);
      PrefetchRow(rows[key + kAhead + 1], dim * 2);
    }
    const auto* even = static_cast<const std::uint16_t*>(rows[key]);
    const auto* odd = static_cast<const std::uint16_t*>(rows[key + 1]);
    for (int c = 0; c < dim; c += kAmxStep) {
      take->Pair(LoadStep(even + c, dim - c), LoadStep(odd + c, dim - c),
                 (static_cast<std::size_t>(c) / kAmxStep * static_cast<std::size_t>(panel_stride) +
                  static_cast<std::size_t>(key)) /
                     2 * kPairBytes);
    }
  }
}

bool PackV(const void* const* rows, int begin, int end, int dim, DType /*dtype*/, int panel_stride,
           void* panels) {
  WholeTile take{static_cast<char*>(panels), {}};
  EachPair(rows, begin, end, dim, panel_stride, &take);
  return take.unfit == 0;
}

UnfitV SplitV(const void* const* rows, int begin, int end, int dim, int panel_stride, void* panels,
              void* small) {
  SplitTile take{static_cast<char*>(panels), static_cast<char*>(small), {}};
  EachPair(rows, begin, end, dim, panel_stride, &take);
  return {take.less != 0, take.poison != 0};
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
    StoreSums(out, kScoreStride, two);
  }
  if (factor != 1.0F) {
    Scale(s, rows, panel_begin * kAmxStep, panel_end * kAmxStep, factor);
  }
}

// Four rows: scores to probabilities in bf16, in place; maxima, sums and rescales as softmax.cc keeps them.
HWY_INLINE void SoftmaxRows(const SoftmaxBlock& block, int row) {
  alignas(16) float less[4];
  RaiseMaxima(block, row, less);

  __m512 sum[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    float* s = block.s + (row + r) * kScoreStride;
    const __m512 base = _mm512_set1_ps(less[r]);
    __m512 by = _mm512_set1_ps(block.factor);
    if (!(less[r] <= kFusedMax && less[r] >= -kFusedMax)) {
      Scale(s, 1, block.begin, block.end, block.factor);
      by = _mm512_set1_ps(1.0F);
    }
    __m512 sum0 = _mm512_setzero_ps();
    __m512 sum1 = sum0;
    auto* p = reinterpret_cast<char*>(s);
    for (int j = block.begin; j < block.end; j += 2 * kLanes) {
      const __m512 p0 = Exp2(_mm512_fmsub_ps(_mm512_load_ps(s + j), by, base));
      const __m512 p1 = Exp2(_mm512_fmsub_ps(_mm512_load_ps(s + j + kLanes), by, base));
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
    StoreSums(sums, kAmxStep, two);
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

// Keys 2 i and 2 i + 1 are a pair.
void ClearV(void* panels, int panel_stride, int /*dim*/, int key, int column) {
  const int pair = column / kAmxStep * (panel_stride / 2) + key / 2;
  static_cast<std::uint16_t*>(panels)[(pair * kAmxStep + column % kAmxStep) * 2 + key % 2] = 0;
}

float Probability(const float* p, int row, int key) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, reinterpret_cast<const char*>(p + row * kScoreStride) + key * 2, sizeof(bits));
  return Upper(bits);
}

void Fill(KernelTable* table) {
  table->tile_parts = 1;
  table->keeps_low = false;
  table->fit_qk = {0x1p-126F, __builtin_inff()};
  table->block_rows = kBlockRows;
  table->block_granule = kTileRows;
  table->panel_keys = kAmxStep;
  table->enter = &Enter;
  table->leave = &Leave;
  table->clear_v = &ClearV;
  table->probability = &Probability;
  table->pack_q = &PackQ;
  table->pack_k = &PackK;
  table->pack_v = &PackV;
  table->split_v = &SplitV;
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

void fill_amx_kernels(DType dtype, KernelTable* table) {
  if (dtype == DType::kBFloat16) {
    N_AVX3_AMX::Fill(table);
  } else {
    fill_amx_parts(dtype, table);
  }
}

}  // namespace attn::cpu

#else  // a compiler or a system without AMX

namespace attn::cpu {

bool amx_usable() noexcept {
  return false;
}

void fill_amx_kernels(DType /*dtype*/, KernelTable* /*table*/) {}

}  // namespace attn::cpu

#endif
