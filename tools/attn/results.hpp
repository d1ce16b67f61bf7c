// Where and from what a measurement comes: the "context" of bench/results files, without host names or
// user names. Tested in tests/cli.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace attn::tool {

// A short name for this kind of machine, from its CPU: "intel-xeon-platinum-8481c-8c".
[[nodiscard]] std::string machine_name();
[[nodiscard]] std::string cpu_model();

// date, commit, dirty, machine, cpu, threads, compiler, flags, versions.
[[nodiscard]] nlohmann::ordered_json results_context(const std::string& machine, int threads);

// The outer object of a results file, rows still empty.
[[nodiscard]] nlohmann::ordered_json results_document(const std::string& what, const std::string& machine,
                                                      int threads);

// JSON with two spaces of indent and a newline at the end; NaN and infinities become null.
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& json);

// Throws Failure where the directory that a path names does not exist: told before the work, not after it.
void check_folder(const std::string& option, const std::string& path);
// Writes a text file that appears by rename when it is complete. Throws Failure.
void write_text_file(const std::string& path, const std::string& text);
// A whole text file, at most 64 MiB. Throws Failure.
[[nodiscard]] std::string read_text_file(const std::string& path);

}  // namespace attn::tool
