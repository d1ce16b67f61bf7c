// Makes the files that the tests of src/io read: bytes by hand, one defect each.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.hpp"

namespace attn::io {

// A directory of its own, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "attn-io-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The integer's bytes, least significant first.
inline std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  return out;
}

inline std::string f4(const std::vector<float>& values) {
  std::string out;
  for (const float value : values) {
    out += little(std::bit_cast<std::uint32_t>(value), 4);
  }
  return out;
}

// A .npy file of a version with this header text, padded as NumPy pads it.
inline std::string npy(const std::string& header, const std::string& data, int version = 1) {
  const std::size_t prelude = version == 1 ? 10 : 12;
  std::string text = header;
  while ((prelude + text.size() + 1) % 64 != 0) {
    text += ' ';
  }
  text += '\n';
  return "\x93NUMPY" + little(static_cast<std::uint64_t>(version), 2) +
         little(text.size(), version == 1 ? 2 : 4) + text + data;
}

inline std::string npy_header(const std::string& descr, const std::string& shape,
                              bool fortran_order = false) {
  return "{'descr': " + descr + ", 'fortran_order': " + (fortran_order ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

inline std::string safetensors(const std::string& json, const std::string& data) {
  return little(json.size(), 8) + json + data;
}

inline Array make(std::string name, ElementType dtype, std::vector<std::int64_t> shape,
                  const std::vector<double>& values) {
  Array wide;
  EXPECT_TRUE(make_array(std::move(name), ElementType::kFloat64, std::move(shape), &wide).ok());
  EXPECT_EQ(wide.bytes.size(), values.size() * 8);
  if (!values.empty()) {
    std::memcpy(wide.data(), values.data(), wide.bytes.size());
  }
  Array out;
  const Status status = convert(wide, dtype, Rounding::kRefuse, &out);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline std::vector<double> values(const Array& array) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < array.num_elements(); ++i) {
    out.push_back(array.at(i));
  }
  return out;
}

inline std::span<const std::byte> as_span(std::string_view bytes) {
  return std::as_bytes(std::span(bytes));
}

// The status has this code, and its message holds every one of the parts.
inline ::testing::AssertionResult refused(const Status& status, StatusCode code,
                                          const std::vector<std::string>& parts) {
  if (status.code() != code) {
    return ::testing::AssertionFailure() << "code " << static_cast<int>(status.code()) << ", expected "
                                         << static_cast<int>(code) << ": " << status.message();
  }
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << status.message();
    }
  }
  return ::testing::AssertionSuccess() << status.message();
}

}  // namespace attn::io
