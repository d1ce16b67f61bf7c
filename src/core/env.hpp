// The one table of environment variables that libattn reads. Nothing else in the library calls getenv.
// `attn list --env` prints it; docs/environment.md is checked against it in tests/unit/env_test.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace attn::core {

enum class Env { kCpuLevel, kNumThreads, kTuneFile };

struct EnvVar {
  Env id;
  const char* name;
  const char* meaning;  // one sentence, with what is allowed
};

[[nodiscard]] std::span<const EnvVar> env_table() noexcept;
// The value, or nothing if unset or empty. Read at each call: tests and callers may change it.
[[nodiscard]] std::optional<std::string> read_env(Env id);

}  // namespace attn::core
