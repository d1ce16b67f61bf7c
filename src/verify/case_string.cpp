// Cases as lines and files of lines. Contract: case.hpp; the tokens: README.md.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "verify/case.hpp"

namespace attn::verify {
namespace {

template <typename E>
struct Name {
  E value;
  const char* name;
};

constexpr Name<Data> kData[] = {
    {Data::kNormal, "normal"},   {Data::kSd8, "sd8"},
    {Data::kSinkKey, "sinkkey"}, {Data::kDrift, "drift"},
    {Data::kSteps, "steps"},     {Data::kRamp, "ramp"},
    {Data::kLargeQ, "largeq"},   {Data::kConstant, "const"},
    {Data::kLargeV, "largev"},   {Data::kSmallV, "smallv"},
    {Data::kAlternating, "alt"}, {Data::kHuge, "huge"},
    {Data::kLow, "low"},         {Data::kNonFinite, "nonfinite"},
};
constexpr Name<Layout> kLayouts[] = {
    {Layout::kBshd, "bshd"},
    {Layout::kBhsd, "bhsd"},
    {Layout::kInterleaved, "interleaved"},
    {Layout::kBroadcastBatch, "bcast_batch"},
    {Layout::kBroadcastHeads, "bcast_heads"},
    {Layout::kBroadcastKeys, "bcast_keys"},
    {Layout::kBroadcastQ, "bcast_q"},
    {Layout::kPadded, "padded"},
    {Layout::kPitch, "pitch"},
    {Layout::kNegative, "negative"},
    {Layout::kGaps, "gaps"},
    {Layout::kUnit, "unit"},
};
constexpr Name<Slopes> kSlopes[] = {{Slopes::kPaper, "paper"},
                                    {Slopes::kBatch, "batch"},
                                    {Slopes::kNegative, "negative"},
                                    {Slopes::kZero, "zero"},
                                    {Slopes::kMixed, "mixed"}};
constexpr Name<Sinks> kSinks[] = {
    {Sinks::kNormal, "normal"}, {Sinks::kHuge, "huge"}, {Sinks::kMinusInf, "ninf"}, {Sinks::kMixed, "mixed"}};
constexpr Name<Poison> kPoisons[] = {
    {Poison::kNaN, "nan"}, {Poison::kInf, "inf"}, {Poison::kHuge, "huge"}, {Poison::kZero, "zero"}};

template <typename E, std::size_t N>
const char* name_of(const Name<E> (&table)[N], E value) noexcept {
  for (const auto& entry : table) {
    if (entry.value == value) {
      return entry.name;
    }
  }
  return "?";
}

template <typename E, std::size_t N>
bool find_name(const Name<E> (&table)[N], std::string_view name, E* value) {
  const auto* const found =
      std::find_if(std::begin(table), std::end(table), [&](const auto& entry) { return name == entry.name; });
  if (found == std::end(table)) {
    return false;
  }
  *value = found->value;
  return true;
}

template <typename E, std::size_t N>
std::string all_names(const Name<E> (&table)[N]) {
  std::string names;
  for (const auto& entry : table) {
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  return names;
}

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return !text.empty() && result.ec == std::errc{} && result.ptr == end;
}

// "300,0" or, for many equal ones, "1x64,129": a length and how often.
bool parse_lengths(std::string_view text, std::vector<std::int64_t>* lens) {
  constexpr std::int64_t kMost = 1 << 24;  // sequences; keeps a hostile line from filling memory
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t times = item.find('x');
    std::int64_t length = 0;
    std::int64_t count = 1;
    if (!parse_number(item.substr(0, times), &length) ||
        (times != std::string_view::npos && !parse_number(item.substr(times + 1), &count)) || count < 1 ||
        count + static_cast<std::int64_t>(lens->size()) > kMost) {
      return false;
    }
    lens->insert(lens->end(), static_cast<std::size_t>(count), length);
    if (comma == std::string_view::npos) {
      return true;
    }
    text.remove_prefix(comma + 1);
  }
  return false;
}

std::string print_lengths(const std::vector<std::int64_t>& lens) {
  std::string text;
  for (std::size_t i = 0; i < lens.size();) {
    std::size_t end = i;
    while (end < lens.size() && lens[end] == lens[i]) {
      ++end;
    }
    const bool group = end - i > 2;
    text += fmt::format("{}{}", text.empty() ? "" : ",", lens[i]);
    if (group) {
      text += fmt::format("x{}", end - i);
    }
    i = group ? end : i + 1;
  }
  return text;
}

Status token_error(std::string_view token, std::string_view allowed) {
  constexpr std::size_t kShown = 64;
  return {StatusCode::kInvalidArgument,
          fmt::format("case: token '{}{}' is not valid; allowed: {}", token.substr(0, kShown),
                      token.size() > kShown ? "…" : "", allowed)};
}

// What one token did: it was not one of ours, or it was taken, or it is wrong.
enum class Token { kForeign, kTaken, kWrong };

Token take_token(std::string_view name, std::string_view value, Case* c, std::string* allowed) {
  if (name == "lens_q" || name == "lens_kv") {
    *allowed = std::string(name) + "=<length>[x<times>],…, one for each sequence";
    return parse_lengths(value, name == "lens_q" ? &c->lens_q : &c->lens_kv) ? Token::kTaken : Token::kWrong;
  }
  if (name == "seed") {
    *allowed = "seed=<whole number>";
    return parse_number(value, &c->seed) ? Token::kTaken : Token::kWrong;
  }
  if (name == "offset") {
    *allowed = "offset=<elements>";
    return parse_number(value, &c->offset) ? Token::kTaken : Token::kWrong;
  }
  if (name == "shared") {
    *allowed = "shared=<pages>";
    return parse_number(value, &c->shared_pages) ? Token::kTaken : Token::kWrong;
  }
  if (name == "slopes") {
    *allowed = "slopes=" + all_names(kSlopes);
    return find_name(kSlopes, value, &c->slopes) ? Token::kTaken : Token::kWrong;
  }
  if (name == "sink_values") {
    *allowed = "sink_values=" + all_names(kSinks);
    return find_name(kSinks, value, &c->sinks) ? Token::kTaken : Token::kWrong;
  }
  if (name == "data") {
    *allowed = "data=" + all_names(kData);
    return find_name(kData, value, &c->data) ? Token::kTaken : Token::kWrong;
  }
  if (name == "layout") {
    *allowed = "layout=" + all_names(kLayouts);
    return find_name(kLayouts, value, &c->layout) ? Token::kTaken : Token::kWrong;
  }
  if (name == "poison") {
    *allowed = "poison=" + all_names(kPoisons);
    return find_name(kPoisons, value, &c->poison) ? Token::kTaken : Token::kWrong;
  }
  return Token::kForeign;
}

// The tokens that lengths imply, where the line does not say them.
void imply(const Case& c, std::string* rest) {
  const auto says = [rest](const char* token) {
    return (" " + *rest).find(std::string(" ") + token) != std::string::npos;
  };
  if (!c.lens_q.empty() && !says("varlen_q=")) {
    *rest += " varlen_q=0";
  }
  if (!c.lens_kv.empty() && !says("varlen_kv=") && !says("seqused")) {
    *rest += " seqused";
  }
  if (says("new=") && !says("seqused")) {
    *rest += " seqused";
  }
}

}  // namespace

const char* to_string(Data data) noexcept {
  return name_of(kData, data);
}
const char* to_string(Layout layout) noexcept {
  return name_of(kLayouts, layout);
}
const char* to_string(Poison poison) noexcept {
  return name_of(kPoisons, poison);
}
const char* to_string(Slopes slopes) noexcept {
  return name_of(kSlopes, slopes);
}
const char* to_string(Sinks sinks) noexcept {
  return name_of(kSinks, sinks);
}

std::span<const Data> all_data() noexcept {
  static constexpr auto kValues = [] {
    std::array<Data, std::size(kData)> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = kData[i].value;
    }
    return values;
  }();
  return kValues;
}
std::span<const Layout> all_layouts() noexcept {
  static constexpr auto kValues = [] {
    std::array<Layout, std::size(kLayouts)> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = kLayouts[i].value;
    }
    return values;
  }();
  return kValues;
}

std::string to_string(const Case& c) {
  std::string text = attn::to_string(c.problem);
  if (!c.lens_q.empty()) {
    text += " lens_q=" + print_lengths(c.lens_q);
  }
  if (!c.lens_kv.empty()) {
    text += " lens_kv=" + print_lengths(c.lens_kv);
  }
  const Case defaults;
  if (c.data != defaults.data) {
    text += fmt::format(" data={}", to_string(c.data));
  }
  if (c.layout != defaults.layout) {
    text += fmt::format(" layout={}", to_string(c.layout));
  }
  if (c.offset != defaults.offset) {
    text += fmt::format(" offset={}", c.offset);
  }
  if (c.shared_pages != defaults.shared_pages) {
    text += fmt::format(" shared={}", c.shared_pages);
  }
  if (c.slopes != defaults.slopes) {
    text += fmt::format(" slopes={}", to_string(c.slopes));
  }
  if (c.sinks != defaults.sinks) {
    text += fmt::format(" sink_values={}", to_string(c.sinks));
  }
  if (c.poison != defaults.poison) {
    text += fmt::format(" poison={}", to_string(c.poison));
  }
  if (c.seed != defaults.seed) {
    text += fmt::format(" seed={}", c.seed);
  }
  return text;
}

Status parse(std::string_view line, Case* c) {
  constexpr std::string_view kSpace = " \t\r\n";
  Case result;
  std::string rest;
  std::string seen = " ";
  for (std::size_t begin = line.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const std::size_t end = line.find_first_of(kSpace, begin);
    const std::string_view token = line.substr(begin, end == std::string_view::npos ? end : end - begin);
    begin = end == std::string_view::npos ? end : line.find_first_not_of(kSpace, end);

    const std::size_t equals = token.find('=');
    const std::string_view name = token.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : token.substr(equals + 1);
    std::string allowed;
    const Token taken =
        equals == std::string_view::npos ? Token::kForeign : take_token(name, value, &result, &allowed);
    if (taken == Token::kForeign) {
      rest += rest.empty() ? "" : " ";
      rest += token;
      continue;
    }
    if (taken == Token::kWrong) {
      return token_error(token, allowed);
    }
    const std::string marker = fmt::format(" {} ", name);
    if (seen.find(marker) != std::string::npos) {
      return token_error(token, fmt::format("{} once", name));
    }
    seen += fmt::format("{} ", name);
  }
  imply(result, &rest);
  if (Status status = attn::parse(rest, &result.problem); !status.ok()) {
    return status;
  }
  if (Status status = complete(&result); !status.ok()) {
    return status;
  }
  *c = std::move(result);
  return {};
}

Status parse_shapes(std::string_view text, std::vector<Case>* cases) {
  std::vector<Case> result;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    Case c;
    if (const Status status = parse(line, &c); !status.ok()) {
      return {status.code(), fmt::format("line {}: {}", number, status.message())};
    }
    result.push_back(std::move(c));
  }
  cases->insert(cases->end(), result.begin(), result.end());
  return {};
}

Status read_shapes(const std::string& path, std::vector<Case>* cases) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return {StatusCode::kFileError, fmt::format("shape file {} cannot be opened", path)};
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    return {StatusCode::kFileError, fmt::format("shape file {} cannot be read", path)};
  }
  if (const Status status = parse_shapes(text, cases); !status.ok()) {
    return {status.code(), fmt::format("shape file {}, {}", path, status.message())};
  }
  return {};
}

}  // namespace attn::verify
