// Kernels that `attn tune` measured to be best, in a file that ATTN_TUNE_FILE names: JSON, a choice for a
// device, a library version and a problem. The file may hold anything: it is read whole or refused.
// Tested in tests/unit/tune_file_test.cpp.
#pragma once

#include <attn/problem.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan_impl.hpp"

namespace attn::core {

struct TunedChoice {
  std::string device;   // BackendEntry::device_name
  std::string library;  // attn::version(): another version has other kernels
  Problem problem;
  std::string kernel;
};

// {"schema": 1, "what": "attn-tune", "choices": [{"device", "library", "problem", "kernel"}]}; other members
// are skipped. The message says where the text is not that.
Status parse_tune_file(std::string_view text, std::vector<TunedChoice>* choices);
Status read_tune_file(const std::string& path, std::vector<TunedChoice>* choices);

// Sets options->kernel to the file's choice where it is empty, and `note` to what explain() says of that.
// No file, or no choice for this problem, device and version: it stays empty. A file that cannot be read, or
// a choice that is no candidate, is refused: never another kernel than the one that was measured.
Status tuned_kernel(const BackendEntry& entry, const Problem& problem, PlanOptions* options,
                    std::string* note);

}  // namespace attn::core
