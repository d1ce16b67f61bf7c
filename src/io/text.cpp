#include "io/text.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace attn::io {
namespace {

// Bytes of the well-formed UTF-8 sequence of a printable character at the front of text; 0: there is none.
// Well-formed as in The Unicode Standard, table 3-7: no overlong forms, surrogates or values past U+10FFFF.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const auto continues = [&](std::size_t i, std::uint8_t low = 0x80, std::uint8_t high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) {
    return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    const bool c1_control = lead == 0xC2 && text.size() > 1 && byte(1) < 0xA0;
    return continues(1) && !c1_control ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const std::uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;
    const std::uint8_t high = lead == 0xED ? 0x9F : 0xBF;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const std::uint8_t low = lead == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string quote_text(std::string_view text, std::size_t max_bytes) {
  std::string out = "'";
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t length = printable_length(text.substr(i));
    if (i + (length == 0 ? 1 : length) > max_bytes) {
      out += "…";
      break;
    }
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(text[i]));
      i += 1;
      continue;
    }
    if (text[i] == '\'' || text[i] == '\\') {
      out += '\\';
    }
    out.append(text.substr(i, length));
    i += length;
  }
  return out + "'";
}

}  // namespace attn::io
