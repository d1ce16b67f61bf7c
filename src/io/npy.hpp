// NumPy's .npy files: versions 1.0, 2.0 and 3.0, both element orders, both byte orders, f2, f4 and f8.
// A header is never trusted: it is read by a small strict parser (no eval, no pickle), and every size is
// checked against the file before anything is allocated. Objects, structures, integers and bools are refused
// with their dtype. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
// Tested in tests/unit/io_npy_test.cpp and tests/fuzz.
#pragma once

#include <attn/status.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "io/array.hpp"

namespace attn::io {

struct NpyOptions {
  // .npy has no bfloat16: NumPy with ml_dtypes writes its bytes as two-byte void ("<V2", "|V2"). Such a file
  // is read as bf16, and a bf16 array written so, only when this says so.
  bool void2_is_bf16 = false;
};

// The array's name is left empty. kFileError with a message that names the path and the reason.
Status read_npy(const std::string& path, const NpyOptions& options, Array* array);

// The same for a file in memory; `label` stands for the path in messages.
Status parse_npy(std::span<const std::byte> file, std::string_view label, const NpyOptions& options,
                 Array* array);

// Row order, little endian, version 1.0 (2.0 where the header is too long for it). The file appears by rename
// when it is complete; on failure what was at `path` is untouched and nothing else is left.
Status write_npy(const std::string& path, const Array& array, const NpyOptions& options);

struct NpyOutput {
  std::string path;
  const Array* array = nullptr;
};

// Several files, none of which appears before all of them are complete on disk.
Status write_npy(std::span<const NpyOutput> outputs, const NpyOptions& options);

}  // namespace attn::io
