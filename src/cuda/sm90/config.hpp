// KernelKey says what a kernel computes, KernelConfig how. Plain C++20, shared by host and device: the host
// plans with the same arithmetic (tile_m, shared memory) that the kernel is built from. The values of every
// kernel that is built stand in src/cuda/instances/manifest.json. Tested in tests/unit/cuda_host_test.cpp.
#pragma once

#include <cstdint>

namespace attn::sm90 {

enum class Element : std::int32_t { kFloat16, kBFloat16 };
// kFull: every row sees every key. kBand: row i sees keys [i + lower, i + upper), which is causal and every
// window; with wide bounds it computes what kFull does.
enum class Mask : std::int32_t { kFull, kBand };
// What becomes of the logits before the softmax: scaled, or softcap and ALiBi too (device/score.hpp).
enum class Logits : std::int32_t { kScaled, kChanged };
// Where a row's exponentials take their reference from: device/online_softmax.hpp.
enum class Softmax : std::int32_t { kClassic, kSpeculative };

// head_dim_qk and head_dim_v are the tile's: a problem's may be smaller, and TMA fills up with zeros.
struct KernelKey {
  Element element = Element::kBFloat16;
  int head_dim_qk = 128;
  int head_dim_v = 128;
  Mask mask = Mask::kFull;
  Logits logits = Logits::kScaled;

  friend constexpr bool operator==(const KernelKey&, const KernelKey&) = default;
};

struct KernelConfig {
  int warpgroups = 2;  // consumers, 64 query rows each
  int tile_n = 128;    // keys a block
  int k_stages = 2;
  int v_stages = 2;
  int q_slots = 2;  // 2 and more: the next tile's first product is issued beside this tile's last
  Softmax softmax = Softmax::kSpeculative;
  bool short_first = false;   // speculative: a tile's first reference comes from its first 8 columns only
  bool output_first = false;  // a step's P·V is issued before its Q·Kᵀ
  bool ping_pong = true;      // warpgroups take turns at the tensor cores
  int producer_registers = 40;
  int consumer_registers = 232;

  [[nodiscard]] constexpr int tile_m() const { return 64 * warpgroups; }
  [[nodiscard]] constexpr int threads() const { return 128 * (warpgroups + 1); }

  friend constexpr bool operator==(const KernelConfig&, const KernelConfig&) = default;
};

// sm_90: 227 KB a block (CUDA programming guide, table of limits).
inline constexpr int kMaxSharedBytes = 232448;
inline constexpr int kRegisterFile = 65536;  // 32-bit registers an SM
// Barriers and tile infos, generously; checked in shared_storage.hpp.
inline constexpr int kBarrierBytes = 1024;
inline constexpr int kBoxColumns = 64;  // a TMA box is 128 bytes wide, the span of its swizzle

// Columns that a tile of this head dim takes in shared memory: whole boxes.
[[nodiscard]] constexpr int stored_columns(int head_dim) {
  return (head_dim + kBoxColumns - 1) / kBoxColumns * kBoxColumns;
}

// Rows of a TMA box of O. With one Q slot each consumer warp sends its 16 rows through two boxes of its own;
// with more, a tile's O goes through its Q slot.
[[nodiscard]] constexpr int o_box_rows(const KernelConfig& config) {
  return config.q_slots == 1 ? 16 : config.tile_m();
}
[[nodiscard]] constexpr int o_boxes_bytes(const KernelConfig& config) {
  return config.q_slots == 1 ? 4 * config.warpgroups * 2 * o_box_rows(config) * kBoxColumns * 2 : 0;
}

// Bytes of dynamic shared memory: Q slots, K and V stages, boxes of O, barriers.
[[nodiscard]] constexpr int shared_bytes(const KernelKey& key, const KernelConfig& config) {
  const int row_qk = stored_columns(key.head_dim_qk) * 2;
  const int row_v = stored_columns(key.head_dim_v) * 2;
  return row_qk * (config.q_slots * config.tile_m() + config.k_stages * config.tile_n) +
         row_v * config.v_stages * config.tile_n + o_boxes_bytes(config) + kBarrierBytes;
}

// Whether wgmma and the layouts have tiles of this head dim (device/wgmma.hpp).
[[nodiscard]] constexpr bool is_tile_head_dim(int d) {
  return d == 32 || d == 64 || d == 80 || d == 96 || d == 112 || d == 128 || d == 160 || d == 192 || d == 256;
}

// Whether the numbers fit the machine; the manifest's table is checked with it when it is compiled.
[[nodiscard]] constexpr bool well_formed(const KernelKey& key, const KernelConfig& config) {
  const int registers = 128 * config.producer_registers + 128 * config.warpgroups * config.consumer_registers;
  return is_tile_head_dim(key.head_dim_qk) && is_tile_head_dim(key.head_dim_v) &&
         key.head_dim_v <= key.head_dim_qk &&  // O leaves through the Q slot
         (key.logits == Logits::kScaled || key.mask == Mask::kBand) &&
         (config.warpgroups == 2 || config.warpgroups == 3) && config.tile_n % 16 == 0 &&
         config.k_stages >= 1 && config.v_stages >= 1 && config.q_slots >= 1 &&
         config.producer_registers % 8 == 0 && config.consumer_registers % 8 == 0 &&
         // setmaxnreg hands on what the launch gave: kRegisterFile / threads, rounded down to 8.
         registers <= config.threads() * (kRegisterFile / config.threads() / 8 * 8) &&
         shared_bytes(key, config) <= kMaxSharedBytes;
}

}  // namespace attn::sm90
