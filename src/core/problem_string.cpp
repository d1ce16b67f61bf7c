// The problem string: one table of tokens drives both directions, so that what prints also parses.
// Grammar: docs/problem-string.md. Tested in tests/unit/problem_test.cpp and fuzzed in tests/fuzz.
#include <fmt/format.h>

#include <algorithm>
#include <attn/problem.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace attn::inline v1 {
namespace {

using Field = std::int64_t Problem::*;
using Flag = bool Problem::*;

struct SizeToken {
  std::string_view prefix;  // followed directly by the number: "sq4096"
  Field field;
};
constexpr SizeToken kSizes[] = {
    {"b", &Problem::batch},       {"hq", &Problem::heads_q},   {"hk", &Problem::heads_kv},
    {"sq", &Problem::seqlen_q},   {"sk", &Problem::seqlen_kv}, {"d", &Problem::head_dim_qk},
    {"dv", &Problem::head_dim_v},
};

struct CountToken {
  std::string_view name;  // "name=number"; left out at its default, 0
  Field field;
};
constexpr CountToken kCounts[] = {
    {"page", &Problem::page_size},
    {"pages", &Problem::num_pages},
    {"new", &Problem::seqlen_new},
    {"splits", &Problem::num_splits},
};

struct FlagToken {
  std::string_view name;
  Flag field;
  bool value;  // what the bare word sets; the default is its opposite
};
constexpr FlagToken kFlags[] = {
    {"sinks", &Problem::sinks, true},
    {"lse_without_sink", &Problem::lse_with_sink, false},
    {"alibi", &Problem::alibi, true},
    {"seqused", &Problem::seqused_kv, true},
    {"lse", &Problem::want_lse, true},
    {"invariant", &Problem::batch_invariant, true},
    {"nondeterministic", &Problem::deterministic, false},
};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// A hostile token must make neither a long message nor one that commands a terminal.
Status token_error(std::string_view token, std::string_view allowed) {
  constexpr std::size_t kShown = 64;
  std::string shown(token.substr(0, kShown));
  for (char& c : shown) {
    if (c < ' ' || c > '~') {
      c = '?';
    }
  }
  return {StatusCode::kInvalidArgument, fmt::format("problem string: token '{}{}' is not valid; {}", shown,
                                                    token.size() > kShown ? "…" : "", allowed)};
}

bool parse_int(std::string_view text, std::int64_t* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return !text.empty() && result.ec == std::errc{} && result.ptr == end;
}

bool parse_float(std::string_view text, float* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return !text.empty() && result.ec == std::errc{} && result.ptr == end;
}

bool parse_alignment(std::string_view text, Alignment* alignment) {
  if (text == "br") {
    *alignment = Alignment::kBottomRight;
    return true;
  }
  if (text == "tl") {
    *alignment = Alignment::kTopLeft;
    return true;
  }
  return false;
}

std::string_view alignment_name(Alignment alignment) {
  return alignment == Alignment::kBottomRight ? "br" : "tl";
}

// Which tokens have been seen, by name, so that a repeated one is an error.
struct Parser {
  Problem problem;
  std::vector<std::string_view> seen;

  [[nodiscard]] bool has(std::string_view name) const {
    return std::find(seen.begin(), seen.end(), name) != seen.end();
  }
  Status once(std::string_view name, std::string_view token) {
    if (has(name)) {
      return token_error(token, fmt::format("'{}' was given before", name));
    }
    seen.push_back(name);
    return {};
  }

  Status parse_token(std::string_view token);
  Status parse_option(std::string_view token, std::string_view name, std::string_view value);
  Status parse_word(std::string_view token);
  Status finish();
};

Status Parser::parse_option(std::string_view token, std::string_view name, std::string_view value) {
  for (const CountToken& count : kCounts) {
    if (name == count.name) {
      if (!parse_int(value, &(problem.*count.field))) {
        return token_error(token, fmt::format("allowed: {}=<whole number>", name));
      }
      return once(count.name, token);
    }
  }
  if (name == "causal" || name == "align") {
    if (!parse_alignment(value, &problem.alignment)) {
      return token_error(token, fmt::format("allowed: {0}=br (bottom-right) or {0}=tl (top-left)", name));
    }
    problem.causal = name == "causal";
    return once("causal or align", token);
  }
  if (name == "window") {
    const std::size_t comma = value.find(',');
    if (comma == std::string_view::npos || !parse_int(value.substr(0, comma), &problem.window_left) ||
        !parse_int(value.substr(comma + 1), &problem.window_right)) {
      return token_error(token, "allowed: window=<left>,<right>, each -1 (unbounded) or a number from 0");
    }
    return once("window", token);
  }
  if (name == "softcap") {
    if (!parse_float(value, &problem.softcap)) {
      return token_error(token, "allowed: softcap=<number>");
    }
    return once("softcap", token);
  }
  if (name == "scale") {
    float scale = 0;
    if (!parse_float(value, &scale)) {
      return token_error(token, "allowed: scale=<number>");
    }
    problem.softmax_scale = scale;
    return once("scale", token);
  }
  if (name == "varlen_q" || name == "varlen_kv") {
    const bool q = name == "varlen_q";
    if (!parse_int(value, q ? &problem.total_q : &problem.total_kv)) {
      return token_error(token, fmt::format("allowed: {}=<total rows of the packed tensor>", name));
    }
    (q ? problem.varlen_q : problem.varlen_kv) = true;
    return once(q ? "varlen_q" : "varlen_kv", token);
  }
  if (name == "rotary") {
    const std::size_t comma = value.find(',');
    const std::string_view style = comma == std::string_view::npos ? "" : value.substr(comma + 1);
    if (!parse_int(value.substr(0, comma), &problem.rotary_dim) ||
        (style != "half" && style != "interleaved")) {
      return token_error(token, "allowed: rotary=<dim>,half or rotary=<dim>,interleaved");
    }
    problem.rotary_style = style == "half" ? RotaryStyle::kHalfSplit : RotaryStyle::kInterleaved;
    return once("rotary", token);
  }
  return token_error(token, "allowed tokens: docs/problem-string.md");
}

Status Parser::parse_word(std::string_view token) {
  for (const DType dtype : kDTypes) {
    if (token == to_string(dtype)) {
      problem.dtype = dtype;
      return once("dtype", token);
    }
  }
  for (const FlagToken& flag : kFlags) {
    if (token == flag.name) {
      problem.*flag.field = flag.value;
      return once(flag.name, token);
    }
  }
  const std::size_t digits = token.find_first_of("-0123456789");
  const std::string_view prefix = token.substr(0, digits);
  for (const SizeToken& size : kSizes) {
    if (digits != std::string_view::npos && prefix == size.prefix) {
      if (!parse_int(token.substr(digits), &(problem.*size.field))) {
        return token_error(token, fmt::format("allowed: {}<whole number>", size.prefix));
      }
      return once(size.prefix, token);
    }
  }
  return token_error(token, "allowed tokens: docs/problem-string.md");
}

Status Parser::parse_token(std::string_view token) {
  const std::size_t equals = token.find('=');
  if (equals != std::string_view::npos) {
    return parse_option(token, token.substr(0, equals), token.substr(equals + 1));
  }
  return parse_word(token);
}

Status Parser::finish() {
  for (const std::string_view required : {"sq", "d", "dtype"}) {
    if (!has(required)) {
      return {
          StatusCode::kInvalidArgument,
          fmt::format("problem string: '{}' is missing; sq<length>, d<head_dim> and one of fp32, fp16, bf16 "
                      "are required",
                      required)};
    }
  }
  if (!has("hk")) {
    problem.heads_kv = problem.heads_q;
  }
  if (!has("sk")) {
    problem.seqlen_kv = problem.seqlen_q;
  }
  if (!has("dv")) {
    problem.head_dim_v = problem.head_dim_qk;
  }
  return {};
}

}  // namespace

std::string to_string(const Problem& p) {
  std::string text = fmt::format("b{} hq{} hk{} sq{} sk{} d{}", p.batch, p.heads_q, p.heads_kv, p.seqlen_q,
                                 p.seqlen_kv, p.head_dim_qk);
  const auto add = [&text](const std::string& token) {
    text += ' ';
    text += token;
  };
  if (p.head_dim_v != p.head_dim_qk) {
    add(fmt::format("dv{}", p.head_dim_v));
  }
  add(to_string(p.dtype));
  if (p.causal) {
    // Causal without an alignment is not valid, and prints as what it lacks.
    add(p.alignment == Alignment::kUnset ? "causal=?"
                                         : fmt::format("causal={}", alignment_name(p.alignment)));
  } else if (p.alignment != Alignment::kUnset) {
    add(fmt::format("align={}", alignment_name(p.alignment)));
  }
  if (p.window_left != -1 || p.window_right != -1) {
    add(fmt::format("window={},{}", p.window_left, p.window_right));
  }
  if (p.softcap != 0.0F) {
    add(fmt::format("softcap={}", p.softcap));
  }
  if (p.softmax_scale.has_value()) {
    add(fmt::format("scale={}", *p.softmax_scale));
  }
  if (p.varlen_q) {
    add(fmt::format("varlen_q={}", p.total_q));
  }
  if (p.varlen_kv) {
    add(fmt::format("varlen_kv={}", p.total_kv));
  }
  for (const CountToken& count : kCounts) {
    if (p.*count.field != 0) {
      add(fmt::format("{}={}", count.name, p.*count.field));
    }
  }
  if (p.rotary_dim != 0 || p.rotary_style != RotaryStyle::kHalfSplit) {
    add(fmt::format("rotary={},{}", p.rotary_dim,
                    p.rotary_style == RotaryStyle::kHalfSplit ? "half" : "interleaved"));
  }
  for (const FlagToken& flag : kFlags) {
    if (p.*flag.field == flag.value) {
      add(std::string(flag.name));
    }
  }
  return text;
}

Status parse(std::string_view text, Problem* problem) {
  constexpr std::string_view kSpace = " \t\r\n";
  Parser parser;
  std::size_t begin = text.find_first_not_of(kSpace);
  while (begin != std::string_view::npos) {
    const std::size_t end = text.find_first_of(kSpace, begin);
    const std::string_view token =
        text.substr(begin, end == std::string_view::npos ? std::string_view::npos : end - begin);
    if (Status status = parser.parse_token(token); !status.ok()) {
      return status;
    }
    begin = end == std::string_view::npos ? end : text.find_first_not_of(kSpace, end);
  }
  if (Status status = parser.finish(); !status.ok()) {
    return status;
  }
  *problem = parser.problem;
  return {};
}

}  // namespace attn::inline v1
