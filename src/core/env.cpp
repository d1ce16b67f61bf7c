// The table of environment variables. Tested in tests/unit/env_test.cpp.
#include "core/env.hpp"

#include <array>
#include <cstdlib>

namespace attn::core {
namespace {

constexpr std::array<EnvVar, 3> kTable{{
    {Env::kCpuLevel, "ATTN_CPU_LEVEL",
     "SIMD level of the CPU backend: a name that `attn list` prints; refused where this CPU lacks it. Unset: "
     "the best."},
    {Env::kNumThreads, "ATTN_NUM_THREADS",
     "Most threads that the CPU backend uses when the caller asks for none: a whole number from 1. Unset: as "
     "many as CPU affinity and container quota allow."},
    {Env::kTuneFile, "ATTN_TUNE_FILE",
     "A file that `attn tune --store` wrote: kernels measured to be best for problems on this device. Unset: "
     "the library's own choice."},
}};

}  // namespace

std::span<const EnvVar> env_table() noexcept {
  return kTable;
}

std::optional<std::string> read_env(Env id) {
  for (const EnvVar& var : kTable) {
    if (var.id == id) {
      const char* value = std::getenv(var.name);
      if (value != nullptr && *value != '\0') {
        return std::string(value);
      }
    }
  }
  return std::nullopt;
}

}  // namespace attn::core
