// SIMD levels: which this build has, which this CPU can run, and which one a plan takes.
// Tested in tests/unit/cpu_levels_test.cpp.
#pragma once

#include <attn/plan.hpp>
#include <string>
#include <string_view>

#include "cpu/kernels.hpp"

namespace attn::cpu {

inline constexpr std::string_view kKernelPrefix = "cpu:";  // of a level's kernel name

struct LevelChoice {
  const KernelTable* kernels = nullptr;
  std::string
      reason;  // where the choice came from: "best of this CPU", "PlanOptions::cpu_level", "ATTN_CPU_LEVEL"
};

// requested, else the environment, else the best that this CPU can run. A name that does not exist is
// refused as an invalid argument, one that this CPU lacks as unavailable.
Status choose_level(const std::string& requested, LevelChoice* choice);
// The level of PlanOptions::kernel where that is set, else of cpu_level.
Status choose_level(const PlanOptions& options, LevelChoice* choice);

// The kernels of a level that this CPU can run; null otherwise.
const KernelTable* kernels_of(const std::string& level);

}  // namespace attn::cpu
