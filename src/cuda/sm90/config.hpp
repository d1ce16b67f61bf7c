// KernelKey says what a kernel computes, KernelConfig how. Plain C++20, shared by host and device: the host
// plans with the same arithmetic (tile_m, shared memory) that the kernel is built from. The values of every
// kernel that is built stand in src/cuda/instances/manifest.json. Tested in tests/unit/cuda_config_test.cpp.
#pragma once

#include <cstdint>

namespace attn::sm90 {

enum class Element : std::int32_t { kFloat16, kBFloat16 };
enum class Mask : std::int32_t { kFull, kCausal };
// Where a row's exponentials take their reference from: device/online_softmax.hpp.
enum class Softmax : std::int32_t { kClassic, kSpeculative };

struct KernelKey {
  Element element = Element::kBFloat16;
  int head_dim = 128;
  Mask mask = Mask::kFull;

  friend constexpr bool operator==(const KernelKey&, const KernelKey&) = default;
};

struct KernelConfig {
  int warpgroups = 2;  // consumers, 64 query rows each
  int tile_n = 128;    // keys a block
  int k_stages = 2;
  int v_stages = 2;
  int q_slots = 2;  // 2 and more: the next tile's first product is issued beside this tile's last
  bool q_in_registers = false;
  Softmax softmax = Softmax::kSpeculative;
  bool short_first = false;  // speculative: a tile's first reference comes from its first 8 columns only
  bool ping_pong = true;     // warpgroups take turns at the tensor cores
  bool overlap = true;  // false (development only): a block's products and its softmax one after the other
  int producer_registers = 40;
  int consumer_registers = 232;

  [[nodiscard]] constexpr int tile_m() const { return 64 * warpgroups; }
  [[nodiscard]] constexpr int threads() const { return 128 * (warpgroups + 1); }

  friend constexpr bool operator==(const KernelConfig&, const KernelConfig&) = default;
};

inline constexpr int kMaxSharedBytes =
    232448;  // sm_90: 227 KB a block (CUDA programming guide, table of limits)
inline constexpr int kRegisterFile = 65536;  // 32-bit registers an SM
inline constexpr int kBarrierBytes =
    1024;  // barriers and tile infos, generously; checked in shared_storage.hpp

// Bytes of dynamic shared memory: Q slots (which also stage O), K and V stages, barriers.
[[nodiscard]] constexpr int shared_bytes(const KernelKey& key, const KernelConfig& config) {
  const int row = key.head_dim * 2;
  return row * (config.q_slots * config.tile_m() + (config.k_stages + config.v_stages) * config.tile_n) +
         kBarrierBytes;
}

// Whether the numbers fit the machine; the manifest's table is checked with it when it is compiled.
[[nodiscard]] constexpr bool well_formed(const KernelKey& key, const KernelConfig& config) {
  const int registers = 128 * config.producer_registers + 128 * config.warpgroups * config.consumer_registers;
  return (key.head_dim == 64 || key.head_dim == 128 || key.head_dim == 256) &&
         (config.warpgroups == 2 || config.warpgroups == 3) && config.tile_n % 16 == 0 &&
         config.k_stages >= 1 && config.v_stages >= 1 && config.q_slots >= 1 &&
         config.producer_registers % 8 == 0 && config.consumer_registers % 8 == 0 &&
         // setmaxnreg hands on what the launch gave: kRegisterFile / threads, rounded down to 8.
         registers <= config.threads() * (kRegisterFile / config.threads() / 8 * 8) &&
         shared_bytes(key, config) <= kMaxSharedBytes;
}

}  // namespace attn::sm90
