// fp32 and fp16 in AMX's tile registers, which multiply bf16: an element is the sum of bf16 numbers, of three
// in fp32 and of two in fp16, and a product the sum of the parts' products. See amx.hpp.
//
// Rounding to the nearest, 8 bits at a time, cuts the 24 bits of a float into three parts without a rest; the
// second is at most 2⁻⁸ of the first, the third 2⁻¹⁶ (2⁻⁸ of the second). Six of the nine products are taken;
// what is left out is at most 2⁻²³ of the whole. An fp16 element's 11 bits are two parts; all four products
// of Q·K are taken, so that logits are exact but for the sums; its probabilities are two parts of 16 bits
// together, of whose products with V the one of the lesser parts, 2⁻¹⁶, is left out. Sums are fp32: of 32
// products two chains of 16, then one addition for each step of 32 (Intel SDM, TDPBF16PS).
//
// What this costs: six products at 16 times the rate of fp32's FMAs. At d 128 a row against 256 keys takes
// 768 cycles in the tile registers; its softmax 96, the cutting of its probabilities 72, O 60. By FMAs of 16
// lanes it takes 2048 for the products alone.
//
// Layouts, in steps of 32 channels, keys or columns (kAmxStep), each with its parts one after another, the
// largest first. A 32-bit word holds element i of the step below and i + 16 above, in Q as in K, in P as in
// V:
//   Q  [channel step][part][row][16 words]                  A tiles
//   K  [32 keys][channel step][part][16 words][key]         B tiles
//   V  [32 columns][key step][part][16 words][column]       B tiles
//   P  part 0 and 1 of a step in the place of its scores (a row of 32 floats is as long as two rows of an A
//      tile), part 2 behind all scores.
//
// The tile products take subnormal bf16 for zero and flush subnormal results; a part of a part of a huge
// element would overflow. Elements outside what kFitQk and kFitV say are found when packing; tile_exact.cpp
// does them, but for small values, which go through the products times kSmallScale.
#include <cstring>

#include "cpu/amx.hpp"

#if ATTN_HAVE_AMX

#include "cpu/amx-inl.h"

HWY_PUSH_ATTRIBUTES(ATTN_AMX_TARGET)
namespace attn::cpu::N_AVX3_AMX {
namespace {

constexpr int kPartWords = kAmxStep / 2 * kAmxStep;  // of a part of a step of K or V
constexpr std::size_t kPartBytes = kPartWords * sizeof(float);

// Third parts of probabilities: rows of 256 and a cache line, for the reason of kScoreStride.
constexpr int kThirdStride = (kMaxTileKeys + kAmxStep) / 2;  // floats
constexpr int kThirdBegin = kMaxBlockRows * kScoreStride;

// An element's type, and what the products ask of it.
struct Fp32 {
  static constexpr int kParts = 3;
  static constexpr std::size_t kBytes = 4;
  // The third part of 2⁻¹⁰⁰ is at least 2⁻¹²³: no subnormal. 512 products below 2¹¹⁸ do not overflow.
  static constexpr Fit kFitQk{0x1p-100F, 0x1p59F};
  // Of a product with P that is lost below 2⁻¹²⁶, 2³⁰ keys lose 2⁻⁹⁶: less than 2⁻²² of values from 2⁻⁷² on.
  static constexpr Fit kFitV{0x1p-72F, 0x1p126F};
  HWY_INLINE static __m512 Load(const char* p, __mmask16 which) { return _mm512_maskz_loadu_ps(which, p); }
};
struct Fp16 {
  static constexpr int kParts = 2;
  static constexpr std::size_t kBytes = 2;
  static constexpr Fit kFitQk{0, 65504};
  static constexpr Fit kFitV{0, 65504};
  HWY_INLINE static __m512 Load(const char* p, __mmask16 which) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, p));
  }
};

// Lanes of n elements from the one at `from` on; what lies beyond is not read.
HWY_INLINE __mmask16 Lanes(int n, int from) {
  const int count = n - from;
  return count >= kLanes ? __mmask16{0xFFFF}
         : count <= 0    ? __mmask16{0}
                         : static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U);
}

HWY_INLINE __m512i Magnitude(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
}

HWY_INLINE __m512i Bits(float x) {
  return _mm512_set1_epi32(static_cast<int>(__builtin_bit_cast(std::uint32_t, x)));
}

// Not 0 and less than `least`, or more than `most`, or NaN.
HWY_INLINE __mmask16 Unfit(__m512 x, Fit fit) {
  const __m512i magnitude = Magnitude(x);
  __mmask16 unfit = _mm512_cmpgt_epu32_mask(magnitude, Bits(fit.most));
  if (fit.least > 0) {
    const __m512i one = _mm512_set1_epi32(1);
    const __mmask16 less =
        _mm512_cmplt_epu32_mask(_mm512_sub_epi32(magnitude, one), _mm512_sub_epi32(Bits(fit.least), one));
    unfit = _kor_mask16(unfit, less);
  }
  return unfit;
}

constexpr __mmask16 kAll = 0xFFFF;

// The parts of x in the upper halves of words; the first alone where `whole` is not set. The lower halves of
// all but the last are 0.
template <int kParts>
HWY_INLINE void Cut(__m512 x, __mmask16 whole, __m512i* parts) {
  const __m512i half = _mm512_set1_epi32(0x8000);
#pragma GCC unroll 2
  for (int i = 0; i < kParts - 1; ++i) {
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x), half);
    parts[i] = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U)));
    x = _mm512_maskz_sub_ps(whole, x, _mm512_castsi512_ps(parts[i]));
  }
  // What is left of fp32 after two parts, and of fp16 after one, has no more than 8 bits. Of fp32 after one
  // (probabilities of fp16) it is rounded.
  parts[kParts - 1] = kParts == 2 ? _mm512_add_epi32(_mm512_castps_si512(x), half) : _mm512_castps_si512(x);
}

// The words of elements i (below) and i + 16 (above).
template <int kParts>
HWY_INLINE void CutPairs(__m512 below, __mmask16 whole_below, __m512 above, __mmask16 whole_above,
                         __m512i* words) {
  __m512i a[kParts];
  __m512i b[kParts];
  Cut<kParts>(below, whole_below, a);
  Cut<kParts>(above, whole_above, b);
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    words[i] = _mm512_mask_blend_epi16(0xAAAAAAAAU, _mm512_srli_epi32(a[i], 16), b[i]);
  }
}

// The words of a and b to their place in a tile of V, part after part.
template <class T>
HWY_INLINE void StorePair(__m512 a, __m512 b, char* at) {
  __m512i words[T::kParts];
  CutPairs<T::kParts>(a, kAll, b, kAll, words);
#pragma GCC unroll 3
  for (int part = 0; part < T::kParts; ++part) {
    _mm512_store_si512(at + static_cast<std::size_t>(part) * kPartBytes, words[part]);
  }
}

// Channels c to c + 31 of a row of dim.
template <class T>
HWY_INLINE void CutStep(const void* row, int c, int dim, __mmask16* unfit, __m512i* words) {
  const char* at = static_cast<const char*>(row) + static_cast<std::size_t>(c) * T::kBytes;
  const __m512 below = T::Load(at, Lanes(dim, c));
  const __m512 above = T::Load(at + kLanes * T::kBytes, Lanes(dim, c + kLanes));
  *unfit = _kor_mask16(*unfit, _kor_mask16(Unfit(below, T::kFitQk), Unfit(above, T::kFitQk)));
  CutPairs<T::kParts>(below, kAll, above, kAll, words);
}

template <class T>
bool PackQOf(const void* const* rows, int count, int padded, int dim, void* packed) {
  auto* out = static_cast<char*>(packed);
  const std::size_t part = static_cast<std::size_t>(padded) * kStepBytes;
  __mmask16 unfit = 0;
  for (int r = 0; r < padded; ++r) {
    char* of_row = out + static_cast<std::size_t>(r) * kStepBytes;
    for (int c = 0; c < dim; c += kAmxStep) {
      __m512i words[T::kParts] = {};
      if (r < count) {
        CutStep<T>(rows[r], c, dim, &unfit, words);
      }
      for (const __m512i& word : words) {
        _mm512_store_si512(of_row, word);
        of_row += part;
      }
    }
  }
  return unfit == 0;
}

// Queries of fp16 that were rotated: their values, as floats.
struct Fp16AsFloats : Fp16 {
  static constexpr std::size_t kBytes = 4;
  HWY_INLINE static __m512 Load(const char* p, __mmask16 which) { return Fp32::Load(p, which); }
};

template <class T>
bool PackQ(const void* const* rows, int count, int padded, int dim, DType dtype, float* /*stage*/,
           void* packed) {
  if (T::kParts == 2 && dtype == DType::kFloat32) {
    return PackQOf<Fp16AsFloats>(rows, count, padded, dim, packed);
  }
  return PackQOf<T>(rows, count, padded, dim, packed);
}

template <class T>
bool PackK(const void* const* rows, int num_keys, int dim, DType /*dtype*/, float* /*stage*/, void* panels) {
  constexpr int kAhead = 16;
  const std::size_t panel_words = static_cast<std::size_t>(round_up(dim) / kAmxStep) * T::kParts * kPartWords;
  __mmask16 unfit = 0;
  for (int first = 0; first < num_keys; first += kTileRows) {
    for (int r = 0; r < kTileRows && first + kAhead + r < num_keys; ++r) {
      PrefetchRow(rows[first + kAhead + r], dim * static_cast<int>(T::kBytes));
    }
    auto* half = static_cast<std::uint32_t*>(panels) +
                 static_cast<std::size_t>(first / kAmxStep) * panel_words + first % kAmxStep;
    for (int c = 0; c < dim; c += kAmxStep) {
      alignas(64) __m512i words[T::kParts][kTileRows];
      for (int r = 0; r < kTileRows; ++r) {
        __m512i of_row[T::kParts];
        CutStep<T>(rows[first + r], c, dim, &unfit, of_row);
#pragma GCC unroll 3
        for (int i = 0; i < T::kParts; ++i) {
          words[i][r] = of_row[i];
        }
      }
#pragma GCC unroll 3
      for (int i = 0; i < T::kParts; ++i) {
        Transpose16(words[i], half);
        half += kPartWords;
      }
    }
  }
  return unfit == 0;
}

// All of V. Where an element does not fit the first step that holds one is the last: SplitV does the tile
// again. (fp16 has no such thing as too small, and none.)
template <class T>
struct WholeTile {
  char* panels;
  __mmask16 unfit = 0;
  HWY_INLINE void Pair(__m512 a, __m512 b, std::size_t at) {
    unfit = _kor_mask16(unfit, _kor_mask16(Unfit(a, T::kFitV), Unfit(b, T::kFitV)));
    StorePair<T>(a, b, panels + at);
  }
  HWY_INLINE bool Stop() const { return T::kFitV.least > 0 && unfit != 0; }
};

// V without what does not fit, and what is small in a tile of its own.
struct SplitTile {
  char* panels;
  char* small;
  __mmask16 poison = 0;
  __mmask16 less = 0;
  HWY_INLINE void Pair(__m512 a, __m512 b, std::size_t at) {
    const Parted x = Part(a);
    const Parted y = Part(b);
    StorePair<Fp32>(x.fitting, y.fitting, panels + at);
    StorePair<Fp32>(x.small, y.small, small + at);
  }
  HWY_INLINE bool Stop() const { return false; }

 private:
  struct Parted {
    __m512 fitting;
    __m512 small;
  };
  HWY_INLINE Parted Part(__m512 x) {
    const __mmask16 unfit = Unfit(x, Fp32::kFitV);
    const __mmask16 is_less = _mm512_mask_cmplt_epu32_mask(unfit, Magnitude(x), Bits(Fp32::kFitV.least));
    poison = _kor_mask16(poison, _kandn_mask16(is_less, unfit));
    less = _kor_mask16(less, is_less);
    return {_mm512_maskz_mov_ps(_knot_mask16(unfit), x), TimesSmallScale(is_less, x)};
  }
};

// Pairs of elements half a key step apart, and where their words lie in the tile.
template <class T, class Take>
HWY_INLINE void EachPair(const void* const* rows, int begin, int end, int dim, int panel_stride, Take* take) {
  const std::size_t panel_bytes = static_cast<std::size_t>(panel_stride / kAmxStep) * T::kParts * kPartBytes;
  for (int key = begin; key < end && !take->Stop(); key += kAmxStep) {
    const std::size_t step = static_cast<std::size_t>(key / kAmxStep) * T::kParts * kPartBytes;
    for (int i = 0; i < kAmxStep / 2; ++i) {
      const auto* below = static_cast<const char*>(rows[key + i]);
      const auto* above = static_cast<const char*>(rows[key + i + kAmxStep / 2]);
      if (key + kAmxStep < end) {
        PrefetchRow(rows[key + i + kAmxStep], dim * static_cast<int>(T::kBytes));
        PrefetchRow(rows[key + i + kAmxStep + kAmxStep / 2], dim * static_cast<int>(T::kBytes));
      }
      const std::size_t out = step + static_cast<std::size_t>(i) * kPairBytes;
      for (int c = 0; c < dim; c += kLanes) {
        const __mmask16 lanes = Lanes(dim, c);
        take->Pair(
            T::Load(below + static_cast<std::size_t>(c) * T::kBytes, lanes),
            T::Load(above + static_cast<std::size_t>(c) * T::kBytes, lanes),
            out + static_cast<std::size_t>(c / kAmxStep) * panel_bytes + (c % kAmxStep) * sizeof(float));
      }
      if (dim % kAmxStep != 0 && dim % kAmxStep <= kLanes) {  // the upper columns of the last step
        take->Pair(_mm512_setzero_ps(), _mm512_setzero_ps(),
                   out + static_cast<std::size_t>(dim / kAmxStep) * panel_bytes + kLanes * sizeof(float));
      }
    }
  }
}

template <class T>
bool PackV(const void* const* rows, int begin, int end, int dim, DType /*dtype*/, int panel_stride,
           void* panels) {
  WholeTile<T> take{static_cast<char*>(panels)};
  EachPair<T>(rows, begin, end, dim, panel_stride, &take);
  return take.unfit == 0;
}

UnfitV SplitV(const void* const* rows, int begin, int end, int dim, int panel_stride, void* panels,
              void* small) {
  SplitTile take{static_cast<char*>(panels), static_cast<char*>(small)};
  EachPair<Fp32>(rows, begin, end, dim, panel_stride, &take);
  return {take.less != 0, take.poison != 0};
}

template <class T>
void ClearV(void* panels, int panel_stride, int /*dim*/, int key, int column) {
  const int step = column / kAmxStep * (panel_stride / kAmxStep) + key / kAmxStep;
  auto* out =
      static_cast<std::uint16_t*>(panels) + static_cast<std::ptrdiff_t>(step) * T::kParts * kPartWords * 2;
  const int word = key % (kAmxStep / 2) * kAmxStep + column % kAmxStep;
  for (int part = 0; part < T::kParts; ++part) {
    out[(part * kPartWords + word) * 2 + key % kAmxStep / (kAmxStep / 2)] = 0;
  }
}

// Where the rows of A tiles of a step lie, by part.
template <int kParts>
struct Rows {
  const char* part[kParts];
  std::size_t stride[kParts];  // bytes from row to row
};

template <int kParts>
HWY_INLINE void LoadA(const Rows<kParts>& a, int part, bool two) {
  _tile_loadd(4, a.part[part], a.stride[part]);
  if (two) {
    _tile_loadd(5, a.part[part] + kTileRows * a.stride[part], a.stride[part]);
  }
}

HWY_INLINE void LoadB(const char* b, int part) {
  const char* at = b + static_cast<std::size_t>(part) * kPartBytes;
  _tile_loadd(6, at, kPairBytes);
  _tile_loadd(7, at + 64, kPairBytes);
}

HWY_INLINE void Multiply(bool two) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (two) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// One step: the sums += A · B, without the product of the largest parts. The order of the parts saves loads:
// each product shares one with the one before.
HWY_INLINE void AddLesser(const Rows<3>& a, const char* b, bool /*all*/, bool two) {
  LoadA(a, 2, two);
  LoadB(b, 0);
  Multiply(two);
  LoadA(a, 1, two);
  Multiply(two);
  LoadB(b, 1);
  Multiply(two);
  LoadA(a, 0, two);
  Multiply(two);
  LoadB(b, 2);
  Multiply(two);
}

HWY_INLINE void AddLesser(const Rows<2>& a, const char* b, bool all, bool two) {
  LoadA(a, 1, two);
  LoadB(b, 0);
  Multiply(two);
  if (all) {
    LoadB(b, 1);
    Multiply(two);
  }
  LoadA(a, 0, two);
  LoadB(b, 1);
  Multiply(two);
}

// … with it. A's largest part is there from AddLesser.
template <int kParts>
HWY_INLINE void AddStep(const Rows<kParts>& a, const char* b, bool two) {
  AddLesser(a, b, false, two);
  LoadB(b, 0);
  Multiply(two);
}

template <class T>
void Scores(const void* q, int rows, int dim, const void* panels, int panel_begin, int panel_end,
            float factor, float* s) {
  const int steps = round_up(dim) / kAmxStep;
  const bool two = rows > kTileRows;
  const std::size_t part = static_cast<std::size_t>(rows) * kStepBytes;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const char* k = static_cast<const char*>(panels) + static_cast<std::size_t>(panel) *
                                                           static_cast<std::size_t>(steps) * T::kParts *
                                                           kPartBytes;
    Rows<T::kParts> a;
    for (int i = 0; i < T::kParts; ++i) {
      a.part[i] = static_cast<const char*>(q) + static_cast<std::size_t>(i) * part;
      a.stride[i] = kStepBytes;
    }
    // The lesser products of all channels before the largest ones: a sum is rounded each time, and 6
    // roundings a step of like terms are 96 in one direction at head dim 512, half as much again as the
    // bound.
    ZeroSums(two);
    for (int step = 0; step < steps; ++step) {
      AddLesser(a, k + static_cast<std::size_t>(step) * T::kParts * kPartBytes, true, two);
      for (int i = 0; i < T::kParts; ++i) {
        a.part[i] += T::kParts * part;
      }
    }
    for (int step = steps - 1; step >= 0; --step) {
      a.part[0] -= T::kParts * part;
      LoadA(a, 0, two);
      LoadB(k + static_cast<std::size_t>(step) * T::kParts * kPartBytes, 0);
      Multiply(two);
    }
    StoreSums(s + panel * kAmxStep, kScoreStride, two);
  }
  if (factor != 1.0F) {
    Scale(s, rows, panel_begin * kAmxStep, panel_end * kAmxStep, factor);
  }
}

// 2^(by · s − base), 0 below 2⁻¹²⁶.
template <int kParts>
HWY_INLINE __m512 Weight(__m512 s, __m512 by, __m512 base) {
  const __m512 x = _mm512_sub_ps(_mm512_mul_ps(s, by), base);
  return kParts == 2 ? Exp2(x) : Exp2Precise(x);
}

// Weights below 2⁻¹⁰⁰ have one part: the others would be subnormal, which costs the processor some 200 cycles
// each. They are not 0, whose product with an infinite value is NaN.
HWY_INLINE __mmask16 Whole(__m512 weight) {
  return _mm512_cmp_ps_mask(weight, _mm512_set1_ps(0x1p-100F), _CMP_NLT_UQ);
}

// Four rows: scores to the parts of probabilities; maxima, rescales' exponents and the tile's sums. The
// factor is multiplied in and rounded before the maximum is subtracted: the largest score's probability is to
// be 1 exactly, so that a mean of equal values is that value.
template <int kParts>
HWY_INLINE void SoftmaxRows(const SoftmaxBlock& block, int row, float* tile_sums) {
  alignas(16) float less[4];
  RaiseMaxima(block, row, less);

  const __m512 by = _mm512_set1_ps(block.factor);
  __m512 sum[4];
  for (int r = 0; r < 4; ++r) {
    float* s = block.s + (row + r) * kScoreStride;
    const __m512 base = _mm512_set1_ps(less[r]);
    float* third = block.s + kThirdBegin + (row + r) * kThirdStride;
    __m512 sum0 = _mm512_setzero_ps();
    __m512 sum1 = sum0;
    for (int j = block.begin; j < block.end; j += kAmxStep) {
      const __m512 p0 = Weight<kParts>(_mm512_load_ps(s + j), by, base);
      const __m512 p1 = Weight<kParts>(_mm512_load_ps(s + j + kLanes), by, base);
      sum0 = _mm512_add_ps(sum0, p0);
      sum1 = _mm512_add_ps(sum1, p1);
      __m512i words[kParts];
      CutPairs<kParts>(p0, Whole(p0), p1, Whole(p1), words);
      _mm512_store_si512(s + j, words[0]);
      _mm512_store_si512(s + j + kLanes, words[1]);
      if constexpr (kParts == 3) {
        _mm512_store_si512(third + j / 2, words[2]);
      }
    }
    sum[r] = _mm512_add_ps(sum0, sum1);
  }
  _mm_storeu_ps(tile_sums + row, Reduce4(Add(), sum));
}

// Rows are taken by fours: block.s and the row arrays have room for kMaxBlockRows, a multiple of four.
template <int kParts>
void Softmax(const SoftmaxBlock& block) {
  alignas(64) float tile_sums[kMaxBlockRows] = {};
  for (int row = 0; row < block.rows; row += 4) {
    SoftmaxRows<kParts>(block, row, tile_sums);
  }
  for (int row = 0; row < block.rows; row += kLanes) {
    const __m512 rescale = Exp2Precise(_mm512_loadu_ps(block.rescale + row));
    const __m512 tile_sum = _mm512_load_ps(tile_sums + row);
    const __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(block.row_sum + row), rescale);
    const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(block.row_sum_low + row), rescale);
    const __m512 total = _mm512_add_ps(sum, tile_sum);
    const __m512 lost = _mm512_sub_ps(tile_sum, _mm512_sub_ps(total, sum));
    _mm512_storeu_ps(block.rescale + row, rescale);
    _mm512_storeu_ps(block.row_sum + row, total);
    _mm512_storeu_ps(block.row_sum_low + row, _mm512_add_ps(low, lost));
  }
}

template <int kParts>
float Probability(const float* p, int row, int key) {
  const int half = key % kAmxStep / (kAmxStep / 2);
  const int word = key % (kAmxStep / 2);
  const float* parts = p + row * kScoreStride + key / kAmxStep * kAmxStep + word;
  const float* const at[] = {parts, parts + kLanes,
                             p + kThirdBegin + row * kThirdStride + key / kAmxStep * kLanes + word};
  float sum = 0;
  for (int part = 0; part < kParts; ++part) {
    std::uint16_t bits[2];
    std::memcpy(bits, at[part], sizeof(bits));
    sum += Upper(bits[half]);
  }
  return sum;
}

// o, with what rounding has lost from it in low, ← rescale · o + x, as AddCompensated in gemm.cc.
HWY_INLINE void AddCompensated(__m512 rescale, __m512 x, float* HWY_RESTRICT o, float* HWY_RESTRICT low) {
  const __m512 before = _mm512_mul_ps(_mm512_load_ps(o), rescale);
  const __m512 lost_before = _mm512_mul_ps(_mm512_load_ps(low), rescale);
  const __m512 after = _mm512_add_ps(before, x);
  const __m512 lost = _mm512_sub_ps(x, _mm512_sub_ps(after, before));
  _mm512_store_ps(o, after);
  _mm512_store_ps(low, _mm512_add_ps(lost_before, lost));
}

// Keys whose probabilities, 32 rows in three parts, stay in the first-level cache while all columns are gone
// through: 24 of its 48 KiB.
constexpr int kChunkKeys = 128;

// The sums of 32 columns over the keys of steps [step_begin, step_end), beginning with what is there if
// `more`.
template <class T>
HWY_INLINE void AddSteps(const Accumulation& acc, const char* panel, int step_begin, int step_end, bool more,
                         bool two, float* sums) {
  const char* v = panel + static_cast<std::size_t>(step_begin) * T::kParts * kPartBytes;
  Rows<T::kParts> p;
  for (int i = 0; i < T::kParts; ++i) {
    const float* first =
        i < 2 ? acc.p + step_begin * kAmxStep + i * kLanes : acc.p + kThirdBegin + step_begin * kLanes;
    p.part[i] = reinterpret_cast<const char*>(first);
    p.stride[i] = (i < 2 ? kScoreStride : kThirdStride) * sizeof(float);
  }
  if (more) {
    LoadSums(sums, kAmxStep, two);
  } else {
    ZeroSums(two);
  }
  for (int step = step_begin; step < step_end; ++step) {
    AddStep(p, v, two);
    for (int i = 0; i < T::kParts; ++i) {
      p.part[i] += i < 2 ? 2 * kStepBytes : kStepBytes;
    }
    v += T::kParts * kPartBytes;
  }
  StoreSums(sums, kAmxStep, two);
}

template <class T>
void Accumulate(const Accumulation& acc, const void* panels, int panel_stride, int dim) {
  constexpr int kChunkSteps = kChunkKeys / kAmxStep;
  const bool two = acc.rows > kTileRows;
  const int step_begin = acc.begin / kAmxStep;
  const int step_end = round_up(acc.end) / kAmxStep;
  alignas(64) float sums[kBlockRows * kMaxHeadDimCpu];
  const std::size_t panel_bytes = static_cast<std::size_t>(panel_stride / kAmxStep) * T::kParts * kPartBytes;
  for (int begin = step_begin, end = 0; begin < step_end; begin = end) {
    end = HWY_MIN((begin / kChunkSteps + 1) * kChunkSteps, step_end);
    for (int column = 0; column < dim; column += kAmxStep) {
      const char* panel =
          static_cast<const char*>(panels) + static_cast<std::size_t>(column / kAmxStep) * panel_bytes;
      float* of_panel = sums + column * kBlockRows;
      AddSteps<T>(acc, panel, begin, end, begin > step_begin, two, of_panel);
      if (end < step_end) {
        continue;
      }
      const bool wide = dim - column > kLanes;
      for (int r = 0; r < acc.rows; ++r) {
        const __m512 rescale = _mm512_set1_ps(acc.rescale[r]);
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * acc.o_stride + column;
        const float* x = of_panel + r * kAmxStep;
        AddCompensated(rescale, _mm512_load_ps(x), acc.o + at, acc.o_low + at);
        if (wide) {
          AddCompensated(rescale, _mm512_load_ps(x + kLanes), acc.o + at + kLanes, acc.o_low + at + kLanes);
        }
      }
    }
  }
}

template <class T>
void FillFor(KernelTable* table) {
  table->tile_parts = T::kParts;
  table->fit_qk = T::kFitQk;
  table->most_v = T::kFitV.most;
  table->split_v = T::kFitV.least > 0 ? &SplitV : nullptr;
  table->score_floats = kThirdBegin + (T::kParts == 3 ? kMaxBlockRows * kThirdStride : 0);
  table->block_rows = kBlockRows;
  table->block_granule = kTileRows;
  table->panel_keys = kAmxStep;
  table->enter = &Enter;
  table->leave = &Leave;
  table->pack_q = &PackQ<T>;
  table->pack_k = &PackK<T>;
  table->pack_v = &PackV<T>;
  table->clear_v = &ClearV<T>;
  table->probability = &Probability<T::kParts>;
  table->scores = &Scores<T>;
  table->softmax = &Softmax<T::kParts>;
  table->accumulate = &Accumulate<T>;
}

}  // namespace
}  // namespace attn::cpu::N_AVX3_AMX
HWY_POP_ATTRIBUTES

namespace attn::cpu {

void fill_amx_parts(DType dtype, KernelTable* table) {
  if (dtype == DType::kFloat16) {
    N_AVX3_AMX::FillFor<N_AVX3_AMX::Fp16>(table);
  } else {
    N_AVX3_AMX::FillFor<N_AVX3_AMX::Fp32>(table);
  }
}

}  // namespace attn::cpu

#endif
