// The SIMD kernels of one level behind a table of plain functions. Everything above the table is ordinary
// C++ compiled for the baseline; everything below is compiled once a level (Highway's foreach_target) and
// knows only tiles, never problems. Tested in tests/unit/cpu_kernels_test.cpp on every level.
#pragma once

#include <attn/tensor.hpp>
#include <cstddef>
#include <cstdint>

namespace attn::cpu {

inline constexpr std::int64_t kMaxHeadDimCpu = 512;

// A row of scores or probabilities, in floats: the largest key tile and one cache line more, so that rows do
// not all fall into the same sets of the L1 cache (256 floats = 1 KiB apart would).
inline constexpr int kMaxTileKeys = 256;
inline constexpr int kScoreStride = kMaxTileKeys + 16;
// Largest number of rows of any level's register tile, and of rows that the direct path takes at once.
inline constexpr int kMaxBlockRows = 32;
inline constexpr int kMaxDirectRows = 4;
// Sums over keys are kept in chains of this many additions, which are then added up, so that the rounding of
// a long sum of like terms stays below 2⁻²⁰ relative (a chain of n like terms drifts by up to n/3 · 2⁻²⁴).
inline constexpr int kKeyChain = 32;

// Largest row maximum whose probabilities may be 2^(factor · s − max) by a fused product: max is rounded, by
// up to 2⁻²⁴ of itself, so that the exponent of the largest score is off by as much (which moves all of a
// row's probabilities, and its maximum, alike). Beyond, scores are multiplied and rounded first.
inline constexpr float kFusedMax = 65536;

// The scores of one block of rows against the keys [begin, end) of a tile.
struct SoftmaxBlock {
  float* s = nullptr;  // rows × kScoreStride: log2-domain scores in, probabilities out
  int rows = 0;
  int begin = 0;  // a multiple of KernelTable::panel_keys
  int end = 0;    // … too; keys that a row does not see hold −inf
  // Per row, kMaxBlockRows entries each: the running maximum, the running sum as a pair (high, low), and
  // (out) the factor by which what was accumulated before has to be multiplied.
  float* row_max = nullptr;
  float* row_sum = nullptr;
  float* row_sum_low = nullptr;
  float* rescale = nullptr;
  float factor = 1;  // > 0; of the scores, where KernelTable::tile_parts > 0: else they come multiplied
};

// What turns scale · q·k into log2-domain logits where it is more than a factor.
struct LogitTransform {
  float softcap = 0.0F;               // 0: off
  const float* slope_log2 = nullptr;  // per row, slope · log2(e); null: no ALiBi
  const float* distance =
      nullptr;  // per row: position of the tile's key 0 relative to the row's reference key
};

// Accumulation O += P·V over keys [begin, end) of a tile, after O was multiplied by rescale.
struct Accumulation {
  const float* p = nullptr;  // what KernelTable::softmax left
  int rows = 0;
  int begin = 0;
  int end = 0;
  const float* rescale = nullptr;  // per row
  float* o = nullptr;              // rows × o_stride
  float* o_low = nullptr;          // what rounding lost from o, same layout
  int o_stride = 0;
};

// What an element has to be for packed products to take it for what it is: 0, or of a magnitude from least to
// most. By default all but NaN is.
struct Fit {
  float least = 0;
  float most = __builtin_inff();
};

// Where the products of tiles flush small numbers, values below what they take go into a tile of their own,
// times this: exact, and 2⁻¹⁴⁹ to 2⁻⁷² become 2⁻⁵³ to 2²⁴. A constant, for a scale that followed from the
// data would carry something of keys that a row does not see into its bits.
inline constexpr float kSmallScale = 0x1p96F;

// What a tile of V holds beside values that the products take.
struct UnfitV {
  bool small = false;   // not 0 and less
  bool poison = false;  // more, infinite or NaN
};

// Q, K and V tiles are packed in a layout of the level's own: fp32 panels, or with tile_parts > 0 the layout
// of AMX's tile registers (amx.cpp, amx_parts.cpp). Only the kernels look inside.
struct KernelTable {
  const char* level = nullptr;
  const KernelTable* tiles_of[3] = {};  // by DType: the table for packed tiles where that is another
  int lanes = 0;                        // floats of a vector
  int block_rows = 0;                   // rows of the register tile, or that go through the kernels together
  int block_granule = 2;                // blocks are padded to a multiple of so many rows
  int panel_keys = 0;                   // keys of a packed K panel: two vectors
  int tile_parts = 0;     // the bf16 numbers whose sum an element of a tile is; 0: it is a float
  bool keeps_low = true;  // accumulate keeps what rounding lost of O
  int score_floats = kMaxBlockRows * kScoreStride;  // of the memory for a block's scores and probabilities
  Fit fit_qk;                                       // what the packed products ask of Q and K
  float most_v = 3.402823466e38F;                   // … and the largest magnitude of V that they take

  // Around the packed kernels' use on a thread; null: nothing to do.
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;

  // `count` rows of Q (dim elements of dtype), padded with zero rows, to [channel][row] in fp32, or with
  // tile_parts to A tiles of bf16. stage holds block_rows × (dim rounded up to lanes) floats; up to a vector
  // is written behind the packed rows. Returns false where an element does not fit (fit_qk).
  bool (*pack_q)(const void* const* rows, int count, int padded, int dim, DType dtype, float* stage,
                 void* packed);
  // K rows (each `dim` elements of dtype) into panels of panel_keys keys, [panel][channel][key], fp32.
  // num_keys is a multiple of panel_keys; stage holds panel_keys × (dim rounded up to lanes) floats. Returns
  // false where an element does not fit (fit_qk).
  bool (*pack_k)(const void* const* rows, int num_keys, int dim, DType dtype, float* stage, void* panels);
  // V rows [begin, end) into column panels of two vectors (the last may be one), [panel][key][column], fp32,
  // zero padded. A panel holds panel_stride keys. Returns whether the products take every element; with
  // split_v, what was packed means nothing where they do not.
  bool (*pack_v)(const void* const* rows, int begin, int end, int dim, DType dtype, int panel_stride,
                 void* panels);
  // The same of rows that hold other elements: what the products take into panels, what is too small for
  // them, times kSmallScale, into small, and 0 wherever there is nothing. Null: there is no such thing as too
  // small.
  UnfitV (*split_v)(const void* const* rows, int begin, int end, int dim, int panel_stride, void* panels,
                    void* small) = nullptr;
  // Puts a zero in the place of one element of packed V.
  void (*clear_v)(void* panels, int panel_stride, int dim, int key, int column);
  // A probability as accumulate takes it; p: the block's, as softmax left them.
  float (*probability)(const float* p, int row, int key);

  // s[r][key] = factor · Σ_c q[c][r] · k[c][key] over whole panels [panel_begin, panel_end).
  void (*scores)(const void* q, int rows, int dim, const void* panels, int panel_begin, int panel_end,
                 float factor, float* s);
  void (*transform)(float* s, int rows, int begin, int end, const LogitTransform& transform);
  void (*softmax)(const SoftmaxBlock& block);
  // panels as pack_v left them.
  void (*accumulate)(const Accumulation& a, const void* panels, int panel_stride, int dim);

  // The direct path, for up to kMaxDirectRows query rows: K and V rows are read in place.
  // q: rows × q_stride floats, zero padded to lanes.
  void (*scores_direct)(const float* q, int rows, int q_stride, int dim, const void* const* k_rows, int begin,
                        int end, DType dtype, float factor, float* s);
  void (*accumulate_direct)(const Accumulation& a, const void* const* v_rows, int dim, DType dtype);

  // out[c] = (o[c] + o_low[c]) / divisor, rounded to nearest even.
  void (*store_row)(const float* o, const float* o_low, float divisor, int dim, DType dtype, void* out);

  // Whole arrays; the conversions match core/numeric.hpp bit for bit.
  void (*to_float)(const void* in, DType dtype, std::size_t count, float* out);
  void (*from_float)(const float* in, DType dtype, std::size_t count, void* out);
  void (*exp2)(const float* in, std::size_t count, float* out);
  void (*tanh)(const float* in, std::size_t count, float* out);

  // Independent fp32 FMAs in registers: `rounds` × the returned number of floating-point operations.
  double (*fma_rounds)(std::int64_t rounds);
};

// Each compile unit of kernels fills its own entries for a target (a Highway target bit).
void fill_convert_kernels(std::int64_t target, KernelTable* table);
void fill_pack_kernels(std::int64_t target, KernelTable* table);
void fill_gemm_kernels(std::int64_t target, KernelTable* table);
void fill_softmax_kernels(std::int64_t target, KernelTable* table);
void fill_direct_kernels(std::int64_t target, KernelTable* table);

}  // namespace attn::cpu
