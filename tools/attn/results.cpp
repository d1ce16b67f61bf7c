// The context of measured results and the files they go to: see results.hpp.
#include "results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <attn/version.hpp>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <thread>

#include "build_info.hpp"
#include "command.hpp"
#include "io/file.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    const std::size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos && colon + 2 <= line.size()) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::string machine_name() {
  std::string name;
  const std::string model = cpu_model();
  for (const std::string_view word : split(model, ' ')) {
    std::string plain(word.substr(0, word.find('(')));  // "Intel(R)"
    if (plain.empty() || plain == "CPU" || plain == "Processor" || plain == "@" ||
        plain.find("GHz") != std::string::npos) {
      continue;
    }
    name += name.empty() ? "" : "-";
    for (const char c : plain) {
      name += std::isalnum(static_cast<unsigned char>(c)) != 0
                  ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                  : '-';
    }
  }
  return fmt::format("{}-{}c", name, std::max(1U, std::thread::hardware_concurrency()));
}

Json results_context(const std::string& machine, int threads) {
  Json versions;
  versions["attn"] = version();
  versions["highway"] = kHighwayVersion;
  versions["onetbb"] = kTbbVersion;
  Json context;
  context["date"] = utc_now();
  context["commit"] = kBuildCommit;
  context["dirty"] = kBuildDirty;
  context["machine"] = machine;
  context["cpu"] = cpu_model();
  context["threads"] = threads;
  context["compiler"] = kBuildCompiler;
  context["flags"] = kBuildFlags;
  context["versions"] = versions;
  return context;
}

Json results_document(const std::string& what, const std::string& machine, int threads) {
  Json document;
  document["schema"] = 1;
  document["what"] = what;
  document["command"] = command_line();
  document["context"] = results_context(machine, threads);
  document["ceilings"] = Json::object();
  document["rows"] = Json::array();
  return document;
}

std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void check_folder(const std::string& option, const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!parent.empty() && !std::filesystem::is_directory(parent, ignored)) {
    throw Failure{kFile, fmt::format("{}: '{}' is in a directory that does not exist", option, path)};
  }
}

void write_text_file(const std::string& path, const std::string& text) {
  io::OutputFile file;
  check(file.open(path));
  check(file.write(text));
  check(file.finish());
  check(file.publish());
}

std::string read_text_file(const std::string& path) {
  std::shared_ptr<const io::Source> source;
  check(io::open_source(path, &source));
  constexpr std::int64_t kLargest = std::int64_t{64} << 20;
  if (source->size() > kLargest) {
    throw Failure{kFile, fmt::format("{}: {} bytes; at most 64 MiB are read", path, source->size())};
  }
  std::string text(static_cast<std::size_t>(source->size()), '\0');
  check(source->read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace attn::tool
