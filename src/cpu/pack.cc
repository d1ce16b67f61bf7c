// Packing of K and V tiles into fp32 panels that the register-tiled kernels read in order.
// Tested in tests/unit/cpu_kernels_test.cpp on every level.
#include "cpu/hwy_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/pack.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/convert-inl.h"
#include "cpu/kernels.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using V = hn::VFromD<D>;
constexpr size_t kLanes = HWY_LANES(float);
constexpr size_t kPanelKeys = 2 * kLanes;

#if HWY_TARGET != HWY_SCALAR
// Four floats at channel c of the rows 0, 4, 8, … (one per 128-bit block).
template <class D2>
HWY_INLINE hn::VFromD<D2> LoadBlocks(D2 d, const float* const* rows, size_t c) {
  if constexpr (hn::MaxLanes(D2()) == 4) {
    return hn::LoadU(d, rows[0] + c);
  } else {
    const hn::Half<D2> half;
    return hn::Combine(d, LoadBlocks(half, rows + hn::MaxLanes(half), c), LoadBlocks(half, rows, c));
  }
}

// Channels c … c + 3 of kLanes rows, to rows of `stride`: a transposition in each 128-bit block.
HWY_INLINE void TransposeFour(const float* const* rows, size_t c, float* out, size_t stride) {
  const D d;
  const hn::RepartitionToWide<D> d64;
  const V r0 = LoadBlocks(d, rows + 0, c);
  const V r1 = LoadBlocks(d, rows + 1, c);
  const V r2 = LoadBlocks(d, rows + 2, c);
  const V r3 = LoadBlocks(d, rows + 3, c);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, out + stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, out + 2 * stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, out + 3 * stride);
}
#endif

// kPanelKeys rows of fp32 into [channel][key].
HWY_INLINE void TransposePanel(const float* const* rows, size_t dim, float* panel) {
  size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; c + 4 <= dim; c += 4) {
    TransposeFour(rows, c, panel + c * kPanelKeys, kPanelKeys);
    TransposeFour(rows + kLanes, c, panel + c * kPanelKeys + kLanes, kPanelKeys);
  }
#endif
  for (; c < dim; ++c) {
    for (size_t key = 0; key < kPanelKeys; ++key) {
      panel[c * kPanelKeys + key] = rows[key][c];
    }
  }
}

// A row of dim elements as floats; zeros up to a whole vector.
template <class T>
HWY_INLINE void StageRow(const T* row, size_t dim, float* out) {
  const D d;
  size_t c = 0;
  for (; c + kLanes <= dim; c += kLanes) {
    hn::StoreU(LoadFloat(d, row + c), d, out + c);
  }
  if (c < dim) {
    hn::StoreU(LoadFloatN(d, row + c, dim - c), d, out + c);
  }
}

template <class T>
void PackQOf(const void* const* rows, size_t count, size_t padded, size_t dim, float* stage, float* packed) {
  const size_t stage_stride = (dim + kLanes - 1) / kLanes * kLanes;
  // Rows of padding repeat the first as far as a vector reads them; zeros stand for them below.
  const float* staged[2 * kLanes + kMaxBlockRows];
  for (size_t r = 0; r < HWY_MAX(padded, kLanes) + kLanes; ++r) {
    staged[r] = stage + (r < count ? r * stage_stride : 0);
  }
  for (size_t r = 0; r < count; ++r) {
    StageRow(static_cast<const T*>(rows[r]), dim, stage + r * stage_stride);
  }
  size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  // A vector of rows, whose surplus the next channel overwrites, or whole vectors.
  if (padded <= kLanes) {
    for (; c + 4 <= dim; c += 4) {
      TransposeFour(staged, c, packed + c * padded, padded);
    }
  } else if (padded % kLanes == 0) {
    for (; c + 4 <= dim; c += 4) {
      for (size_t r = 0; r < padded; r += kLanes) {
        TransposeFour(staged + r, c, packed + c * padded + r, padded);
      }
    }
  }
#endif
  for (; c < dim; ++c) {
    for (size_t r = 0; r < count; ++r) {
      packed[c * padded + r] = staged[r][c];
    }
  }
  for (size_t r = count; r < padded; ++r) {
    for (c = 0; c < dim; ++c) {
      packed[c * padded + r] = 0.0F;
    }
  }
}

bool PackQ(const void* const* rows, int count, int padded, int dim, DType dtype, float* stage, void* packed) {
  const size_t n = static_cast<size_t>(count);
  const size_t of = static_cast<size_t>(padded);
  const size_t channels = static_cast<size_t>(dim);
  float* out = static_cast<float*>(packed);
  switch (dtype) {
    case DType::kFloat32:
      PackQOf<float>(rows, n, of, channels, stage, out);
      break;
    case DType::kFloat16:
      PackQOf<Fp16>(rows, n, of, channels, stage, out);
      break;
    case DType::kBFloat16:
      PackQOf<Bf16>(rows, n, of, channels, stage, out);
      break;
  }
  return true;
}

template <class T>
void PackKOf(const void* const* rows, size_t num_keys, size_t dim, float* stage, float* panels) {
  const size_t stage_stride = (dim + kLanes - 1) / kLanes * kLanes;
  const float* staged[kPanelKeys];
  for (size_t first = 0; first < num_keys; first += kPanelKeys) {
    for (size_t key = 0; key < kPanelKeys; ++key) {
      const T* row = static_cast<const T*>(rows[first + key]);
      if (first + kPanelKeys + key < num_keys) {
        PrefetchRow<T>(rows[first + kPanelKeys + key], dim);
      }
      float* out = stage + key * stage_stride;
      StageRow(row, dim, out);
      staged[key] = out;
    }
    TransposePanel(staged, dim, panels + first * dim);
  }
}

bool PackK(const void* const* rows, int num_keys, int dim, DType dtype, float* stage, void* packed) {
  float* panels = static_cast<float*>(packed);
  const size_t keys = static_cast<size_t>(num_keys);
  const size_t channels = static_cast<size_t>(dim);
  switch (dtype) {
    case DType::kFloat32:
      // Staged too: rows that are a multiple of 4 KiB apart share the same few lines of the first-level
      // cache, and a transposition straight from them reads each line several times.
      PackKOf<float>(rows, keys, channels, stage, panels);
      break;
    case DType::kFloat16:
      PackKOf<Fp16>(rows, keys, channels, stage, panels);
      break;
    case DType::kBFloat16:
      PackKOf<Bf16>(rows, keys, channels, stage, panels);
      break;
  }
  return true;
}

constexpr size_t kAhead = 16;  // rows; about what fits between asking and reading

// Not finite · 0 is NaN and stays so in a sum of such products; finite · 0 adds nothing.
template <class T>
bool PackVOf(const void* const* rows, size_t begin, size_t end, size_t dim, size_t panel_stride,
             float* panels) {
  const D d;
  const V zero = hn::Zero(d);
  V poison = zero;
  const size_t vectors = (dim + kLanes - 1) / kLanes;
  const size_t whole = dim / kLanes;
  for (size_t key = begin; key < end; ++key) {
    const T* row = static_cast<const T*>(rows[key]);
    if (key + kAhead < end) {
      PrefetchRow<T>(rows[key + kAhead], dim);
    }
    for (size_t v = 0; v < vectors; ++v) {
      // Panels are two vectors wide, but for the last where the count is odd.
      const size_t panel = v / 2;
      const size_t width = (vectors - panel * 2 >= 2 ? 2 : 1) * kLanes;
      float* out = panels + panel * panel_stride * kPanelKeys + key * width + (v % 2) * kLanes;
      const V x = v < whole ? LoadFloat(d, row + v * kLanes) : LoadFloatN(d, row + v * kLanes, dim % kLanes);
      poison = hn::MulAdd(x, zero, poison);
      hn::StoreU(x, d, out);
    }
  }
  return hn::AllTrue(d, hn::Eq(poison, zero));
}

bool PackV(const void* const* rows, int begin, int end, int dim, DType dtype, int panel_stride,
           void* packed) {
  float* panels = static_cast<float*>(packed);
  const size_t from = static_cast<size_t>(begin);
  const size_t to = static_cast<size_t>(end);
  const size_t channels = static_cast<size_t>(dim);
  const size_t stride = static_cast<size_t>(panel_stride);
  switch (dtype) {
    case DType::kFloat32:
      return PackVOf<float>(rows, from, to, channels, stride, panels);
    case DType::kFloat16:
      return PackVOf<Fp16>(rows, from, to, channels, stride, panels);
    case DType::kBFloat16:
      return PackVOf<Bf16>(rows, from, to, channels, stride, panels);
  }
  return false;
}

void ClearV(void* packed, int panel_stride, int dim, int key, int column) {
  const size_t vectors = (static_cast<size_t>(dim) + kLanes - 1) / kLanes;
  const size_t vector = static_cast<size_t>(column) / kLanes;
  const size_t panel = vector / 2;
  const size_t width = (vectors - panel * 2 >= 2 ? 2 : 1) * kLanes;
  static_cast<float*>(
      packed)[panel * static_cast<size_t>(panel_stride) * kPanelKeys + static_cast<size_t>(key) * width +
              vector % 2 * kLanes + static_cast<size_t>(column) % kLanes] = 0.0F;
}

void Fill(KernelTable* table) {
  table->panel_keys = static_cast<int>(kPanelKeys);
  table->clear_v = &ClearV;
  table->pack_q = &PackQ;
  table->pack_k = &PackK;
  table->pack_v = &PackV;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace attn::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/fill_targets.hpp"

namespace attn::cpu {

void fill_pack_kernels(std::int64_t target, KernelTable* table) {
  ATTN_CPU_FILL(target, table);
}

}  // namespace attn::cpu
#endif
