// The options of a subcommand, over CLI11 (which only args.cpp includes: it costs 8 s a unit). Numbers are
// parsed whole and without a locale, and every error names the option, the value and what is allowed.
// Tested in tests/cli.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace attn::tool {

class Options {
 public:
  explicit Options(CLI::App* app) noexcept : app_(app) {}

  // The heading of --help under which the options that follow appear.
  void group(std::string name) { group_ = std::move(name); }
  void flag(const std::string& name, bool* target, const std::string& help);
  void text(const std::string& name, std::string* target, const std::string& kind, const std::string& help);
  // A name without dashes is positional. Each may be given several times.
  void texts(const std::string& name, std::vector<std::string>* target, const std::string& kind,
             const std::string& help);
  void integer(const std::string& name, std::int64_t* target, const std::string& help, std::int64_t min = 0,
               std::int64_t max = std::numeric_limits<std::int64_t>::max());
  // Finite numbers only.
  void number(const std::string& name, double* target, const std::string& help,
              double min = std::numeric_limits<double>::lowest());
  void number(const std::string& name, std::optional<float>* target, const std::string& help);
  void choice(const std::string& name, std::string* target, const std::vector<std::string>& values,
              const std::string& help);
  // What --help prints last: examples, one command a line.
  void examples(const std::vector<std::string>& lines);

 private:
  CLI::App* app_;
  std::string group_ = "Options";
};

// Whole strings, no locale, no octal or hex; nothing where the text is not such a number.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text) noexcept;
[[nodiscard]] std::optional<double> parse_number(std::string_view text) noexcept;
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace attn::tool
