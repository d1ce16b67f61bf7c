#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "io/file.hpp"
#include "io/safetensors.hpp"
#include "io/text.hpp"

namespace attn::io {
namespace {

// Upstream pads its headers with spaces so that the data begins at a multiple of 8 (src/tensor.rs, N_LEN).
constexpr std::size_t kDataAlign = 8;

// As a JSON string; false where the text is not UTF-8.
bool append_json(std::string_view text, std::string* out) {
  try {
    *out += nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

Status check(const std::string& path, std::span<const Array> tensors) {
  std::set<std::string_view> names;
  for (const Array& tensor : tensors) {
    const std::optional<std::int64_t> size = checked_bytes(tensor.shape, size_of(tensor.dtype));
    if (!size || *size != static_cast<std::int64_t>(tensor.bytes.size())) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: tensor {}: it has {} bytes, its shape {} of {} is another size", path,
                          quote_text(tensor.name), tensor.bytes.size(), shape_string(tensor.shape),
                          to_string(tensor.dtype))};
    }
    if (tensor.name == "__metadata__") {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: tensor '__metadata__': the format keeps this name for itself", path)};
    }
    if (!names.insert(tensor.name).second) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: tensor {}: the name is used twice", path, quote_text(tensor.name))};
    }
  }
  return {};
}

Status make_header(const std::string& path, const std::vector<const Array*>& tensors,
                   const Metadata& metadata, std::string* header) {
  *header = "{";
  const char* separator = "";
  if (!metadata.empty()) {
    *header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      *header += separator;
      if (!append_json(key, header) || !append_json((*header += ":", value), header)) {
        return {StatusCode::kInvalidArgument,
                fmt::format("{}: metadata {}: the key or value is not UTF-8", path, quote_text(key))};
      }
      separator = ",";
    }
    *header += "}";
  }
  std::size_t offset = 0;
  for (const Array* tensor : tensors) {
    *header += separator;
    separator = ",";
    if (!append_json(tensor->name, header)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: tensor {}: the name is not UTF-8", path, quote_text(tensor->name))};
    }
    std::string shape;
    for (const std::int64_t size : tensor->shape) {
      shape += fmt::format("{}{}", shape.empty() ? "" : ",", size);
    }
    *header += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                           to_string(tensor->dtype), shape, offset, offset + tensor->bytes.size());
    offset += tensor->bytes.size();
  }
  *header += "}";
  header->resize((header->size() + kDataAlign - 1) / kDataAlign * kDataAlign, ' ');
  return {};
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const Array> tensors, const Metadata& metadata) {
  if (Status status = check(path, tensors); !status.ok()) {
    return status;
  }
  std::vector<const Array*> ordered;
  for (const Array& tensor : tensors) {
    ordered.push_back(&tensor);
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Array* a, const Array* b) { return size_of(a->dtype) > size_of(b->dtype); });
  std::string header;
  if (Status status = make_header(path, ordered, metadata, &header); !status.ok()) {
    return status;
  }
  std::string prelude;
  for (unsigned i = 0; i < 8; ++i) {
    prelude += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  OutputFile file;
  if (Status status = file.open(path); !status.ok()) {
    return status;
  }
  if (Status status = file.write(prelude + header); !status.ok()) {
    return status;
  }
  for (const Array* tensor : ordered) {
    if (Status status = write_little_endian(&file, *tensor); !status.ok()) {
      return status;
    }
  }
  if (Status status = file.finish(); !status.ok()) {
    return status;
  }
  return file.publish();
}

}  // namespace attn::io
