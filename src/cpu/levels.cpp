// See levels.hpp.
#include "cpu/levels.hpp"

#include <array>
#include <atomic>
#include <cctype>
#include <mutex>

#include "core/env.hpp"
#include "core/fork.hpp"
#include "core/refusal.hpp"
#include "cpu/amx.hpp"
#include "cpu/cpu_backend.hpp"
#include "cpu/hwy_targets.hpp"
#include "hwy/targets.h"

namespace attn::cpu {
namespace {

struct Level {
  std::int64_t target;
  const char* name;
  bool amx = false;
};

// Best first. The names are Highway's, in lower case; amx is avx3 with the products of tiles in tile
// registers.
constexpr Level kLevels[] = {
#if HWY_TARGETS & HWY_AVX3
#if ATTN_HAVE_AMX
    {HWY_AVX3, "amx", true},
#endif
    {HWY_AVX3, "avx3"},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, "avx2"},
#endif
#if HWY_TARGETS & HWY_SSE4
    {HWY_SSE4, "sse4"},
#endif
#if defined(HWY_SSE2) && (HWY_TARGETS & HWY_SSE2)
    {HWY_SSE2, "sse2"},
#endif
#if defined(HWY_NEON_WITHOUT_AES) && (HWY_TARGETS & HWY_NEON_WITHOUT_AES)
    {HWY_NEON_WITHOUT_AES, "neon"},
#elif HWY_TARGETS & HWY_NEON
    {HWY_NEON, "neon"},
#endif
#if HWY_TARGETS & HWY_SCALAR
    {HWY_SCALAR, "scalar"},
#endif
};
constexpr std::size_t kNumLevels = std::size(kLevels);

bool detect(const Level& level) {
#if HWY_ARCH_ARM_A64
  // Every level built for A64 is part of the architecture. Highway 1.0.3 has NEON only with AES, which no
  // kernel here uses and not every A64 has (Cortex-A72 of the Raspberry Pi 4), and prints a warning where it
  // is missing.
  return level.target != 0;
#else
  return (hwy::SupportedTargets() & level.target) != 0 && (!level.amx || amx_usable());
#endif
}

// What is known of a level, found once: each CPUID that Highway asks is tens of microseconds in a virtual
// machine.
struct Tables {
  bool runnable = false;
  KernelTable of_level;
  KernelTable of_dtype[3];  // where tiles_of points
};

std::array<Tables, kNumLevels> g_tables;
std::atomic<bool> g_filled = false;
std::mutex g_fill_mutex;  // not a static's own guard, which forking could not wait for
[[maybe_unused]] const int g_registered = core::held_over_fork<g_fill_mutex>();

const std::array<Tables, kNumLevels>& tables() {
  if (g_filled.load(std::memory_order_acquire)) {
    return g_tables;
  }
  const std::lock_guard lock(g_fill_mutex);
  if (!g_filled.load(std::memory_order_relaxed)) {
    for (std::size_t i = 0; i < kNumLevels; ++i) {
      g_tables[i].runnable = detect(kLevels[i]);
      if (!g_tables[i].runnable) {
        continue;  // even filling its table is compiled for the level
      }
      KernelTable& table = g_tables[i].of_level;
      table.level = kLevels[i].name;
      fill_convert_kernels(kLevels[i].target, &table);
      fill_pack_kernels(kLevels[i].target, &table);
      fill_gemm_kernels(kLevels[i].target, &table);
      fill_softmax_kernels(kLevels[i].target, &table);
      fill_direct_kernels(kLevels[i].target, &table);
      if (kLevels[i].amx) {
        const KernelTable of_level = table;
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
          const auto at = static_cast<std::size_t>(dtype);
          g_tables[i].of_dtype[at] = of_level;
          fill_amx_kernels(dtype, &g_tables[i].of_dtype[at]);
          table.tiles_of[at] = &g_tables[i].of_dtype[at];
        }
      }
    }
    g_filled.store(true, std::memory_order_release);
  }
  return g_tables;
}

bool runnable(const Level& level) {
  return tables()[static_cast<std::size_t>(&level - kLevels)].runnable;
}

std::string names(bool only_runnable) {
  std::string text;
  for (const Level& level : kLevels) {
    if (!only_runnable || runnable(level)) {
      text += (text.empty() ? "" : ", ") + std::string(level.name);
    }
  }
  return text;
}

}  // namespace

const KernelTable* kernels_of(const std::string& level) {
  for (std::size_t i = 0; i < kNumLevels; ++i) {
    if (level == kLevels[i].name && runnable(kLevels[i])) {
      return &tables()[i].of_level;
    }
  }
  return nullptr;
}

Status choose_level(const std::string& requested, LevelChoice* choice) {
  std::string name = requested;
  std::string argument = "cpu_level";
  if (name.empty()) {
    name = core::read_env(core::Env::kCpuLevel).value_or("");
    argument = "ATTN_CPU_LEVEL";
  }
  if (name.empty()) {
    for (std::size_t i = 0; i < kNumLevels; ++i) {
      if (runnable(kLevels[i])) {
        *choice = {&tables()[i].of_level, "best of this CPU"};
        return {};
      }
    }
    return {StatusCode::kUnavailable, "no SIMD level of this build runs on this CPU; built: " + names(false)};
  }
  for (const Level& level : kLevels) {
    if (name == level.name) {
      if (!runnable(level)) {
        return {StatusCode::kUnavailable,
                argument + " is " + name + ", which this CPU lacks; allowed: " + names(true)};
      }
      *choice = {kernels_of(name), argument};
      return {};
    }
  }
  return {StatusCode::kInvalidArgument, argument + " is " + name + "; allowed: " + names(true)};
}

Status choose_level(const PlanOptions& options, LevelChoice* choice) {
  if (options.kernel.rfind(kKernelPrefix, 0) != 0) {
    return choose_level(options.cpu_level, choice);
  }
  const std::string level = options.kernel.substr(kKernelPrefix.size());
  if (kernels_of(level) == nullptr) {
    return core::invalid("kernel", options.kernel, "cpu: and one of " + names(true));
  }
  *choice = {kernels_of(level), "kernel"};
  return {};
}

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> result;
  for (const Level& level : kLevels) {
    result.push_back({level.name, runnable(level)});
  }
  return result;
}

}  // namespace attn::cpu
