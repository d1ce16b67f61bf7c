// Options over CLI11, and the command line's main: see args.hpp and command.hpp.
#include "args.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "command.hpp"

namespace attn::tool {
namespace {

// CLI11 stores through this; the conversion is ours.
template <class Convert>
void add(CLI::App* app, const std::string& group, const std::string& name, const std::string& kind,
         const std::string& help, Convert convert) {
  app->add_option_function<std::string>(name, convert, help)->group(group)->type_name(kind);
}

std::string range_text(std::int64_t min, std::int64_t max) {
  return max == std::numeric_limits<std::int64_t>::max()
             ? fmt::format("a whole number from {}", min)
             : fmt::format("a whole number from {} to {}", min, max);
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) noexcept {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc{} || result.ptr != end) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> parse_number(std::string_view text) noexcept {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc{} || result.ptr != end) {
    return std::nullopt;
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

void Options::flag(const std::string& name, bool* target, const std::string& help) {
  app_->add_flag_callback(
          name, [target] { *target = true; }, help)
      ->group(group_);
}

void Options::text(const std::string& name, std::string* target, const std::string& kind,
                   const std::string& help) {
  const auto convert = [name, target](const std::string& value) {
    if (value.empty()) {
      fail_usage(fmt::format("{}: the value is empty", name));
    }
    *target = value;
  };
  add(app_, group_, name, kind, help, convert);
}

void Options::texts(const std::string& name, std::vector<std::string>* target, const std::string& kind,
                    const std::string& help) {
  CLI::Option* option = app_->add_option(name, *target, help)->group(group_)->type_name(kind);
  if (name.front() == '-') {
    option->allow_extra_args(false);  // one value each time it is given
  }
}

void Options::integer(const std::string& name, std::int64_t* target, const std::string& help,
                      std::int64_t min, std::int64_t max) {
  const auto convert = [=](const std::string& value) {
    const std::optional<std::int64_t> parsed = parse_integer(value);
    if (!parsed || *parsed < min || *parsed > max) {
      fail_usage(fmt::format("{}: '{}' is not {}", name, value, range_text(min, max)));
    }
    *target = *parsed;
  };
  add(app_, group_, name, "N", help, convert);
}

void Options::number(const std::string& name, double* target, const std::string& help, double min) {
  const auto convert = [=](const std::string& value) {
    const std::optional<double> parsed = parse_number(value);
    if (!parsed || !std::isfinite(*parsed) || *parsed < min) {
      const bool bounded = min > std::numeric_limits<double>::lowest();
      fail_usage(fmt::format("{}: '{}' is not a finite number{}", name, value,
                             bounded ? fmt::format(" from {}", min) : ""));
    }
    *target = *parsed;
  };
  add(app_, group_, name, "X", help, convert);
}

void Options::number(const std::string& name, std::optional<float>* target, const std::string& help) {
  const auto convert = [=](const std::string& value) {
    const std::optional<double> parsed = parse_number(value);
    if (!parsed || !std::isfinite(static_cast<float>(*parsed))) {
      fail_usage(fmt::format("{}: '{}' is not a finite fp32 number", name, value));
    }
    *target = static_cast<float>(*parsed);
  };
  add(app_, group_, name, "X", help, convert);
}

void Options::choice(const std::string& name, std::string* target, const std::vector<std::string>& values,
                     const std::string& help) {
  const std::string allowed = fmt::format("{}", fmt::join(values, "|"));
  const auto convert = [=](const std::string& value) {
    for (const std::string& v : values) {
      if (value == v) {
        *target = value;
        return;
      }
    }
    fail_usage(fmt::format("{}: '{}' is not one of {}", name, value, allowed));
  };
  add(app_, group_, name, allowed, help, convert);
}

void Options::examples(const std::vector<std::string>& lines) {
  app_->footer(fmt::format("Examples:\n  {}", fmt::join(lines, "\n  ")));
}

}  // namespace attn::tool
