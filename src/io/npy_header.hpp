// The header of a .npy file: a Python dict literal, read by a strict parser of just the literals that NumPy
// writes. Linear in the header's length, bounded in depth; nothing is evaluated.
// Tested in tests/unit/io_npy_test.cpp and tests/fuzz.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attn::io {

struct NpyHeader {
  std::string descr;        // the string, or for a structured dtype its source text
  bool structured = false;  // descr is a list, not a string
  bool fortran_order = false;
  std::vector<std::int64_t> shape;  // at most kMaxNpyRank sizes, each at least 0
};

// NumPy 2 allows 64 dimensions (NPY_MAXDIMS), earlier ones 32.
constexpr std::size_t kMaxNpyRank = 64;

// False with the reason in `error`. `text` is the header without magic and length.
bool parse_npy_header(std::string_view text, NpyHeader* header, std::string* error);

}  // namespace attn::io
