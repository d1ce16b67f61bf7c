// Reading what `attn run` computes on: see run_inputs.hpp.
#include "run_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "command.hpp"
#include "results.hpp"

namespace attn::tool {
namespace {

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// An array of 4- or 8-byte integers, in this machine's byte order and row order.
struct RawIntegers {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> values;
};

RawIntegers integers_of_bits(const io::Array& bits) {
  RawIntegers raw;
  raw.shape = bits.shape;
  raw.values.resize(static_cast<std::size_t>(bits.num_elements()));
  const std::size_t width = io::size_of(bits.dtype);
  for (std::size_t i = 0; i < raw.values.size(); ++i) {
    if (width == 4) {
      std::int32_t value = 0;
      std::memcpy(&value, bits.bytes.data() + 4 * i, 4);
      raw.values[i] = value;
    } else {
      std::memcpy(&raw.values[i], bits.bytes.data() + 8 * i, 8);
    }
  }
  return raw;
}

// src/io reads floats. A .npy of int32 or int64 differs from one of fp32 or fp64 in a single character of its
// header, so it is handed over as that, with its bits untouched, and every check of the reader applies.
std::optional<RawIntegers> read_integer_npy(const std::string& path) {
  std::string file = read_text_file(path);
  const std::size_t at = file.find("'descr'");
  constexpr std::size_t kHeader = 128;  // descr stands first in every header that NumPy writes
  if (file.compare(0, 6, "\x93NUMPY") != 0 || at > kHeader) {
    return std::nullopt;
  }
  std::size_t type = file.find_first_not_of(" :", at + 7);
  if (type == std::string::npos || file.size() < type + 5 || file[type] != '\'' || file[type + 4] != '\'' ||
      std::string_view("<>=|").find(file[type + 1]) == std::string_view::npos || file[type + 2] != 'i' ||
      (file[type + 3] != '4' && file[type + 3] != '8')) {
    return std::nullopt;
  }
  file[type + 2] = 'f';
  io::Array bits;
  check(io::parse_npy(std::as_bytes(std::span(file)), path, {}, &bits));
  return integers_of_bits(bits);
}

void shape_rows(const std::string& option, const std::vector<std::int64_t>& shape, std::int64_t* rows,
                std::int64_t* columns) {
  if (shape.size() != 1 && shape.size() != 2) {
    fail_usage(
        fmt::format("{}: shape {} is not allowed; give one or two axes", option, io::shape_string(shape)));
  }
  *rows = shape.size() == 2 ? shape[0] : 1;
  *columns = shape.back();
}

std::int32_t to_int32(const std::string& option, double value, std::size_t index) {
  if (!(value >= std::numeric_limits<std::int32_t>::min() &&
        value <= std::numeric_limits<std::int32_t>::max()) ||
      value != std::floor(value)) {
    fail_usage(
        fmt::format("{}: element {} is {}, not a whole number that fits 32 bits", option, index, value));
  }
  return static_cast<std::int32_t>(value);
}

// "1,2;3,4": rows of equal length.
std::vector<std::vector<double>> parse_list(const std::string& option, const std::string& text) {
  std::vector<std::vector<double>> rows;
  for (const std::string_view line : split(text, ';')) {
    std::vector<double>& row = rows.emplace_back();
    for (const std::string_view word : split(line, ',')) {
      const std::size_t begin = std::min(word.find_first_not_of(' '), word.size());
      const std::string_view number = word.substr(begin, word.find_last_not_of(' ') + 1 - begin);
      const std::optional<double> value = parse_number(number);
      if (!value) {
        fail_usage(fmt::format("{}: '{}' is not a number; give a list such as 0,3,7, a .npy file, or @NAME",
                               option, word));
      }
      row.push_back(*value);
    }
    if (row.size() != rows.front().size()) {
      fail_usage(fmt::format("{}: rows of {} and of {} numbers; all must have the same", option,
                             rows.front().size(), row.size()));
    }
  }
  return rows;
}

}  // namespace

Inputs::Inputs(const std::string& path, bool void2_is_bf16) {
  npy_.void2_is_bf16 = void2_is_bf16;
  if (!path.empty()) {
    file_.emplace();
    check(file_->open(path));
  }
}

io::Array Inputs::array(const std::string& option, const std::string& source) const {
  io::Array array;
  if (source.front() == '@') {
    if (!file_) {
      fail_usage(fmt::format("{}: '{}' names a tensor, but no .safetensors file was given", option, source));
    }
    check(file_->read(source.substr(1), &array), fmt::format("{}: {}", option, file_->path()));
    return array;
  }
  if (ends_with(source, ".safetensors")) {
    fail_usage(
        fmt::format("{}: '{}': give a .safetensors file as the only positional argument, and its "
                    "tensors as @NAME",
                    option, source));
  }
  check(io::read_npy(source, npy_, &array), option);
  return array;
}

io::Array Inputs::integer_tensor(const std::string& option, const io::TensorInfo& info) const {
  // open() has checked the header, so the offsets lie in the file and fit the shape.
  std::ifstream file(file_->path(), std::ios::binary);
  std::array<unsigned char, 8> length{};
  file.read(reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t header = 0;
  for (std::size_t i = 8; i-- > 0;) {
    header = header << 8 | length[i];
  }
  io::Array bits;
  check(io::make_array(info.name, info.dtype == "I32" ? io::ElementType::kFloat32 : io::ElementType::kFloat64,
                       info.shape, &bits),
        option);
  file.seekg(static_cast<std::streamoff>(8 + header) + info.begin);
  file.read(static_cast<char*>(bits.data()), static_cast<std::streamsize>(bits.bytes.size()));
  if (!file) {
    throw Failure{kFile, fmt::format("{}: {}: cannot read tensor '{}'", option, file_->path(), info.name)};
  }
  static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");
  return bits;
}

Integers Inputs::integers(const std::string& option, const std::string& source) const {
  Integers result;
  const auto from_raw = [&](const RawIntegers& raw) {
    shape_rows(option, raw.shape, &result.rows, &result.columns);
    for (std::size_t i = 0; i < raw.values.size(); ++i) {
      if (raw.values[i] != static_cast<std::int32_t>(raw.values[i])) {
        fail_usage(fmt::format("{}: element {} is {}, which does not fit 32 bits", option, i, raw.values[i]));
      }
      result.values.push_back(static_cast<std::int32_t>(raw.values[i]));
    }
    return result;
  };
  if (ends_with(source, ".npy")) {
    if (const std::optional<RawIntegers> raw = read_integer_npy(source)) {
      return from_raw(*raw);
    }
  } else if (source.front() == '@' && file_) {
    const io::TensorInfo* info = file_->find(source.substr(1));
    if (info != nullptr && (info->dtype == "I32" || info->dtype == "I64")) {
      return from_raw(integers_of_bits(integer_tensor(option, *info)));
    }
  } else if (source.front() != '@') {
    const std::vector<std::vector<double>> rows = parse_list(option, source);
    result.rows = static_cast<std::int64_t>(rows.size());
    result.columns = static_cast<std::int64_t>(rows.front().size());
    for (const std::vector<double>& row : rows) {
      for (const double value : row) {
        result.values.push_back(to_int32(option, value, result.values.size()));
      }
    }
    return result;
  }
  const io::Array floats = array(option, source);
  shape_rows(option, floats.shape, &result.rows, &result.columns);
  for (std::int64_t i = 0; i < floats.num_elements(); ++i) {
    result.values.push_back(to_int32(option, floats.at(i), static_cast<std::size_t>(i)));
  }
  return result;
}

Numbers Inputs::numbers(const std::string& option, const std::string& source) const {
  Numbers result;
  if (!ends_with(source, ".npy") && source.front() != '@') {
    const std::vector<std::vector<double>> rows = parse_list(option, source);
    result.rows = static_cast<std::int64_t>(rows.size());
    result.columns = static_cast<std::int64_t>(rows.front().size());
    for (const std::vector<double>& row : rows) {
      for (const double value : row) {
        result.values.push_back(static_cast<float>(value));
      }
    }
    return result;
  }
  const io::Array floats = array(option, source);
  shape_rows(option, floats.shape, &result.rows, &result.columns);
  for (std::int64_t i = 0; i < floats.num_elements(); ++i) {
    result.values.push_back(static_cast<float>(floats.at(i)));
  }
  return result;
}

TensorView view_of(const std::string& option, const io::Array& array, bool bhsd) {
  const std::optional<DType> dtype = io::to_dtype(array.dtype);
  if (!dtype) {
    fail_usage(fmt::format("{}: dtype F64 is not one that attention takes; give --dtype fp32, fp16 or bf16",
                           option));
  }
  std::vector<std::int64_t> shape = array.shape;
  if (shape.size() == 2) {
    shape.insert(shape.begin() + (bhsd ? 0 : 1), 1);
  }
  if (shape.size() == 3) {
    shape.insert(shape.begin(), 1);
  }
  if (shape.size() != 4) {
    fail_usage(
        fmt::format("{}: shape {} is not allowed; give ({}), the same without batch, or (seqlen, head_dim)",
                    option, io::shape_string(array.shape),
                    bhsd ? "batch, heads, seqlen, head_dim" : "batch, seqlen, heads, head_dim"));
  }
  return bhsd ? TensorView::bhsd(array.data(), *dtype, shape[0], shape[2], shape[1], shape[3])
              : TensorView::bshd(array.data(), *dtype, shape[0], shape[1], shape[2], shape[3]);
}

}  // namespace attn::tool
