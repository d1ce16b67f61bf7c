// The CPU backend's kernels by name, for PlanOptions::kernel and `attn tune`. Tested in
// tests/unit/tune_file_test.cpp.
#include <fstream>
#include <string>
#include <vector>

#include "core/env.hpp"
#include "cpu/cpu_backend.hpp"
#include "cpu/levels.hpp"

namespace attn::cpu {

std::vector<std::string> kernels() {
  std::vector<std::string> names;
  for (const CpuLevel& level : levels()) {
    names.push_back(std::string(kKernelPrefix) + level.name);
  }
  return names;
}

std::vector<std::string> candidates(const Problem& /*problem*/, const PlanOptions& options) {
  std::string only = options.cpu_level;
  if (only.empty()) {
    only = core::read_env(core::Env::kCpuLevel).value_or("");
  }
  std::vector<std::string> names;
  for (const CpuLevel& level : levels()) {
    if (level.runnable && (only.empty() || level.name == only)) {
      names.push_back(std::string(kKernelPrefix) + level.name);
    }
  }
  return names;
}

std::string device_name(const PlanOptions& /*options*/) {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  constexpr std::string_view kField = "model name";
  while (std::getline(info, line)) {
    const std::size_t colon = line.find(": ");
    if (line.rfind(kField, 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "cpu";
}

}  // namespace attn::cpu
