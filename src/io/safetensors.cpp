#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "io/file.hpp"
#include "io/safetensors_header.hpp"
#include "io/text.hpp"

namespace attn::io {
namespace {

// The header's length, a little-endian u64, comes first.
constexpr std::int64_t kPrelude = 8;
// safetensors, src/tensor.rs, MAX_HEADER_SIZE.
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kMaxNamesListed = 20;

// Checks the length against the file, then reads the header's text.
Status read_text(const Source& source, std::string* text) {
  const std::string& path = source.label();
  if (source.size() < kPrelude) {
    return file_error(path,
                      fmt::format("header: {} bytes are too few for a .safetensors file", source.size()));
  }
  std::array<std::byte, kPrelude> prelude{};
  if (Status status = source.read(0, prelude); !status.ok()) {
    return status;
  }
  std::uint64_t length = 0;
  for (std::size_t i = prelude.size(); i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(prelude[i]);
  }
  if (length == 0) {
    return file_error(path, "header: its length is 0");
  }
  if (length > static_cast<std::uint64_t>(source.size() - kPrelude)) {
    return file_error(
        path, fmt::format("header: its length {} does not fit the file of {} bytes", length, source.size()));
  }
  if (length > kMaxHeader) {
    return file_error(path,
                      fmt::format("header: its length {} is above the limit of {}", length, kMaxHeader));
  }
  text->resize(static_cast<std::size_t>(length));
  return source.read(kPrelude, std::as_writable_bytes(std::span(*text)));
}

}  // namespace

Status SafetensorsFile::load(std::shared_ptr<const Source> source) {
  *this = SafetensorsFile();
  try {
    std::string text;
    if (Status status = read_text(*source, &text); !status.ok()) {
      return status;
    }
    const std::int64_t data_begin = kPrelude + static_cast<std::int64_t>(text.size());
    SafetensorsHeader header;
    std::string reason;
    if (!parse_safetensors_header(text, source->size() - data_begin, &header, &reason)) {
      return file_error(source->label(), reason);
    }
    path_ = source->label();
    source_ = std::move(source);
    data_begin_ = data_begin;
    tensors_ = std::move(header.tensors);
    metadata_ = std::move(header.metadata);
    by_name_.resize(tensors_.size());
    for (std::size_t i = 0; i < by_name_.size(); ++i) {
      by_name_[i] = i;
    }
    std::sort(by_name_.begin(), by_name_.end(),
              [this](std::size_t a, std::size_t b) { return tensors_[a].name < tensors_[b].name; });
  } catch (const std::bad_alloc&) {
    const std::string label = source != nullptr ? source->label() : path_;
    *this = SafetensorsFile();
    return {StatusCode::kOutOfMemory, label + ": no memory for its header"};
  }
  return {};
}

Status SafetensorsFile::open(const std::string& path) {
  std::shared_ptr<const Source> source;
  if (Status status = open_source(path, &source); !status.ok()) {
    *this = SafetensorsFile();
    return status;
  }
  return load(std::move(source));
}

Status SafetensorsFile::open_memory(std::span<const std::byte> file, std::string_view label) {
  std::shared_ptr<const Source> source;
  if (Status status = memory_source(file, label, &source); !status.ok()) {
    *this = SafetensorsFile();
    return status;
  }
  return load(std::move(source));
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](std::size_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

Status SafetensorsFile::read(std::string_view name, Array* array) const {
  if (source_ == nullptr) {
    return {StatusCode::kInvalidArgument,
            fmt::format("tensor {}: no .safetensors file is open", quote_text(name))};
  }
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    std::string names;
    for (std::size_t i = 0; i < std::min(tensors_.size(), kMaxNamesListed); ++i) {
      names += (i == 0 ? "" : ", ") + quote_text(tensors_[i].name);
    }
    if (tensors_.size() > kMaxNamesListed) {
      names += fmt::format(" and {} more", tensors_.size() - kMaxNamesListed);
    }
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: tensor {} is not in it; it has {}", path_, quote_text(name),
                        tensors_.empty() ? "no tensors" : names)};
  }
  if (!info->element_type) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: tensor {}: dtype {} is not read; F16, BF16, F32 and F64 are", path_,
                        quote_text(name), info->dtype)};
  }
  Array result;
  if (Status status = make_array(info->name, *info->element_type, info->shape, &result); !status.ok()) {
    return {status.code(), fmt::format("{}: {}", path_, status.message())};
  }
  if (Status status = source_->read(data_begin_ + info->begin, result.bytes); !status.ok()) {
    return {status.code(), fmt::format("{} (tensor {})", status.message(), quote_text(name))};
  }
  to_native_order(result.bytes, size_of(result.dtype), /*big_endian=*/false);
  result.storage.dtype = info->dtype;
  *array = std::move(result);
  return {};
}

}  // namespace attn::io
