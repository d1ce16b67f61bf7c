// What every fuzz target shares. A target defines LLVMFuzzerTestOneInput; libFuzzer (clang) or driver.cpp
// (any compiler) calls it. A broken property aborts, as a sanitizer does, so that the input is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#define FUZZ_CHECK(condition, detail)                                                 \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: broken: %s\n%s\n", __FILE__, __LINE__, #condition, \
                   std::string(detail).c_str());                                      \
      std::abort();                                                                   \
    }                                                                                 \
  } while (false)

namespace attn::fuzz {

// Whether a message may be shown in a terminal whatever was in the input.
inline bool printable(std::string_view message) {
  for (const char c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      return false;
    }
  }
  return !message.empty();
}

// Reads small values off the input, zeros once it has run out.
class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  bool flag() { return (byte() & 1) != 0; }
  // Below n (n ≤ 65536).
  std::int64_t below(std::int64_t n) {
    const int value = byte() << 8 | (n > 256 ? byte() : 0);
    return (n > 256 ? value : value >> 8) % n;
  }
  std::uint64_t bits64() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value = value << 8 | byte();
    }
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace attn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
