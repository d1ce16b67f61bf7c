#include "io/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "io/file.hpp"
#include "io/npy_header.hpp"
#include "io/text.hpp"

namespace attn::io {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};
// Magic, version and a length of two bytes (version 1) or four (2 and 3).
constexpr std::int64_t kPreludeV1 = 10;
constexpr std::int64_t kPreludeV2 = 12;
// NumPy itself refuses headers above 10,000 bytes unless told otherwise; only structured dtypes grow long.
constexpr std::int64_t kMaxHeader = std::int64_t{1} << 20;
// What follows the header begins at a multiple of this in files that NumPy writes (numpy.lib.format).
constexpr std::size_t kHeaderAlign = 64;

struct Decoded {
  ElementType type = ElementType::kFloat32;
  bool big_endian = false;
};

// What is wrong with a dtype that is not read, by its kind character.
std::string refusal(std::string_view descr) {
  const std::string_view code = descr.substr(descr.find_first_not_of("<>=|") == 1 ? 1 : 0);
  const char kind = code.empty() ? '?' : code[0];
  std::string what;
  switch (kind) {
    case 'O':
      what = "holds Python objects, which are never unpickled";
      break;
    case 'i':
      what = "holds integers";
      break;
    case 'u':
      what = "holds unsigned integers";
      break;
    case 'b':
      what = "holds bools";
      break;
    case 'c':
      what = "holds complex numbers";
      break;
    case 'S':
    case 'a':
    case 'U':
      what = "holds text";
      break;
    case 'M':
    case 'm':
      what = "holds times";
      break;
    case 'V':
      what = "holds raw bytes (void)";
      break;
    default:
      what = "is not known";
      break;
  }
  return fmt::format("dtype {} {}; f2, f4 and f8 are read, and bf16 stored as V2 on request",
                     quote_text(descr), what);
}

// The meaning of descr, or the reason why it is not read.
std::optional<Decoded> decode_descr(const NpyHeader& header, const NpyOptions& options, std::string* reason) {
  if (header.structured) {
    *reason = fmt::format("dtype {} is structured; f2, f4 and f8 are read, and bf16 stored as V2 on request",
                          quote_text(header.descr));
    return std::nullopt;
  }
  const std::string_view descr = header.descr;
  if (descr == "V2" || descr == "<V2" || descr == "|V2" || descr == "bfloat16" || descr == "<bfloat16") {
    if (options.void2_is_bf16) {
      return Decoded{ElementType::kBFloat16, false};
    }
    *reason = fmt::format(
        "dtype {} is bf16 or any other two bytes, the file does not say; it is read as bf16 only "
        "on request",
        quote_text(descr));
    return std::nullopt;
  }
  Decoded decoded;
  const bool has_order = !descr.empty() && (descr[0] == '<' || descr[0] == '>' || descr[0] == '=');
  const std::string_view code = descr.substr(has_order ? 1 : 0);
  if (code == "f2") {
    decoded.type = ElementType::kFloat16;
  } else if (code == "f4") {
    decoded.type = ElementType::kFloat32;
  } else if (code == "f8") {
    decoded.type = ElementType::kFloat64;
  } else {
    *reason = refusal(descr);
    return std::nullopt;
  }
  // '=' and no sign mean the machine's own order, here as in NumPy.
  decoded.big_endian =
      has_order && descr[0] != '=' ? descr[0] == '>' : std::endian::native == std::endian::big;
  return decoded;
}

// Rewrites `from`, whose first axis runs fastest, so that the last axis does.
void to_row_order(const Bytes& from, std::span<const std::int64_t> shape, std::size_t element_bytes,
                  Bytes* to) {
  std::vector<std::size_t> stride(shape.size());  // in bytes of `from`
  std::size_t step = element_bytes;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    stride[axis] = step;
    step *= static_cast<std::size_t>(shape[axis]);
  }
  std::vector<std::int64_t> index(shape.size(), 0);
  std::size_t source = 0;
  for (std::size_t target = 0; target < from.size(); target += element_bytes) {
    std::memcpy(to->data() + target, from.data() + source, element_bytes);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      source += stride[axis];
      if (++index[axis] < shape[axis]) {
        break;
      }
      source -= stride[axis] * static_cast<std::size_t>(shape[axis]);
      index[axis] = 0;
    }
  }
}

// Reads magic, version and header text; data_begin is where the elements start.
Status read_header(const Source& source, std::string* text, std::int64_t* data_begin) {
  const std::string& path = source.label();
  std::array<std::byte, kPreludeV2> prelude{};
  const std::int64_t available = std::min(source.size(), kPreludeV2);
  if (Status status = source.read(0, std::span(prelude).first(static_cast<std::size_t>(available)));
      !status.ok()) {
    return status;
  }
  if (available < kPreludeV1 || std::memcmp(prelude.data(), kMagic.data(), kMagic.size()) != 0) {
    return file_error(path, available < kPreludeV1
                                ? fmt::format("{} bytes are too few for a .npy file", available)
                                : "is not a .npy file: it does not begin with \\x93NUMPY");
  }
  const auto byte = [&](std::size_t i) { return std::to_integer<std::int64_t>(prelude[i]); };
  const std::int64_t major = byte(6);
  const std::int64_t minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    return file_error(
        path, fmt::format(".npy version {}.{} is not known; 1.0, 2.0 and 3.0 are read", major, minor));
  }
  const std::int64_t begin = major == 1 ? kPreludeV1 : kPreludeV2;
  if (source.size() < begin) {
    return file_error(path, fmt::format("{} bytes are too few for a .npy file", source.size()));
  }
  std::int64_t length = byte(8) | byte(9) << 8;
  if (major > 1) {
    length |= byte(10) << 16 | byte(11) << 24;
  }
  if (length > source.size() - begin) {
    return file_error(
        path, fmt::format("header length {} does not fit the file of {} bytes", length, source.size()));
  }
  if (length > kMaxHeader) {
    return file_error(path, fmt::format("header length {} is above the limit of {}", length, kMaxHeader));
  }
  text->resize(static_cast<std::size_t>(length));
  *data_begin = begin + length;
  return source.read(begin, std::as_writable_bytes(std::span(*text)));
}

Status read_array(const Source& source, const NpyOptions& options, Array* array) {
  const std::string& path = source.label();
  std::string text;
  std::int64_t data_begin = 0;
  if (Status status = read_header(source, &text, &data_begin); !status.ok()) {
    return status;
  }
  NpyHeader header;
  std::string reason;
  if (!parse_npy_header(text, &header, &reason)) {
    return file_error(path, "malformed .npy header: " + reason);
  }
  const std::optional<Decoded> decoded = decode_descr(header, options, &reason);
  if (!decoded) {
    return {StatusCode::kUnsupported, fmt::format("{}: {}", path, reason)};
  }
  const std::size_t element_bytes = size_of(decoded->type);
  const std::optional<std::int64_t> expected = checked_bytes(header.shape, element_bytes);
  if (!expected) {
    return file_error(path, fmt::format("shape {} of {} has more than 2^63 - 1 bytes",
                                        shape_string(header.shape), quote_text(header.descr)));
  }
  const std::int64_t present = source.size() - data_begin;
  if (*expected != present) {
    return file_error(path,
                      fmt::format("shape {} of {} needs {} bytes of data, the file holds {}",
                                  shape_string(header.shape), quote_text(header.descr), *expected, present));
  }
  Array result;
  if (Status status = make_array({}, decoded->type, header.shape, &result); !status.ok()) {
    return {status.code(), fmt::format("{}: {}", path, status.message())};
  }
  if (Status status = source.read(data_begin, result.bytes); !status.ok()) {
    return status;
  }
  to_native_order(result.bytes, element_bytes, decoded->big_endian);
  if (header.fortran_order && header.shape.size() > 1) {
    Bytes reordered(result.bytes.size());
    to_row_order(result.bytes, header.shape, element_bytes, &reordered);
    result.bytes = std::move(reordered);
  }
  result.storage = {header.descr, decoded->big_endian, header.fortran_order};
  *array = std::move(result);
  return {};
}

Status read_guarded(const Source& source, const NpyOptions& options, Array* array) {
  try {
    return read_array(source, options, array);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory,
            fmt::format("{}: no memory for its {} bytes", source.label(), source.size())};
  }
}

std::string header_text(const Array& array, const char* descr) {
  const std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr,
                                       shape_string(array.shape));
  const auto padded = [&](std::size_t prelude) {
    const std::size_t total = (prelude + dict.size() + 1 + kHeaderAlign - 1) / kHeaderAlign * kHeaderAlign;
    return total - prelude;
  };
  std::size_t prelude = kPreludeV1;
  std::size_t length = padded(prelude);
  std::string out(kMagic);
  if (length <= 0xFFFF) {
    out += {'\x01', '\x00'};
  } else {
    out += {'\x02', '\x00'};
    prelude = kPreludeV2;
    length = padded(prelude);
  }
  for (std::size_t i = 0; i < (prelude == kPreludeV1 ? 2U : 4U); ++i) {
    out += static_cast<char>(length >> (8 * i) & 0xFF);
  }
  out += dict;
  out.resize(prelude + length - 1, ' ');
  return out + '\n';
}

Status write_one(const std::string& path, const Array& array, const NpyOptions& options, OutputFile* file) {
  const std::optional<std::int64_t> size = checked_bytes(array.shape, size_of(array.dtype));
  if (!size || *size != static_cast<std::int64_t>(array.bytes.size())) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: the array has {} bytes, its shape {} of {} is another size", path,
                        array.bytes.size(), shape_string(array.shape), to_string(array.dtype))};
  }
  if (array.dtype == ElementType::kBFloat16 && !options.void2_is_bf16) {
    return {
        StatusCode::kUnsupported,
        fmt::format("{}: .npy has no bf16; it is written as two-byte void ('<V2') only on request", path)};
  }
  const char* descr = "<f4";
  switch (array.dtype) {
    case ElementType::kFloat16:
      descr = "<f2";
      break;
    case ElementType::kBFloat16:
      descr = "<V2";
      break;
    case ElementType::kFloat32:
      break;
    case ElementType::kFloat64:
      descr = "<f8";
      break;
  }
  if (Status status = file->open(path); !status.ok()) {
    return status;
  }
  if (Status status = file->write(header_text(array, descr)); !status.ok()) {
    return status;
  }
  if (Status status = write_little_endian(file, array); !status.ok()) {
    return status;
  }
  return file->finish();
}

}  // namespace

Status read_npy(const std::string& path, const NpyOptions& options, Array* array) {
  std::shared_ptr<const Source> source;
  if (Status status = open_source(path, &source); !status.ok()) {
    return status;
  }
  return read_guarded(*source, options, array);
}

Status parse_npy(std::span<const std::byte> file, std::string_view label, const NpyOptions& options,
                 Array* array) {
  std::shared_ptr<const Source> source;
  if (Status status = memory_source(file, label, &source); !status.ok()) {
    return status;
  }
  return read_guarded(*source, options, array);
}

Status write_npy(const std::string& path, const Array& array, const NpyOptions& options) {
  const NpyOutput output{path, &array};
  return write_npy(std::span(&output, 1), options);
}

Status write_npy(std::span<const NpyOutput> outputs, const NpyOptions& options) {
  std::vector<OutputFile> files(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (Status status = write_one(outputs[i].path, *outputs[i].array, options, &files[i]); !status.ok()) {
      return status;
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (files[j].target() == files[i].target()) {
        return {StatusCode::kInvalidArgument,
                fmt::format("{}: two outputs go to this one file; give each its own", outputs[i].path)};
      }
    }
  }
  for (OutputFile& file : files) {
    if (Status status = file.publish(); !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace attn::io
