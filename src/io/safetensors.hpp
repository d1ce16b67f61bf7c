// .safetensors files: F16, BF16, F32 and F64 are read; tensors of other dtypes are listed and refused on
// read. A header is never trusted: each defect is an error that names file, tensor and reason, the offsets
// must cover the data exactly (no gap, no overlap), and memory is bounded by the file's size. Only the bytes
// of the tensors asked for are read. Format: https://github.com/huggingface/safetensors (README, "Format").
// Tested in tests/unit/io_safetensors_test.cpp and tests/fuzz.
#pragma once

#include <attn/status.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.hpp"

namespace attn::io {

class Source;

struct TensorInfo {
  std::string name;
  std::string dtype;                        // as the file says it: "F32", "I64", …
  std::optional<ElementType> element_type;  // set for the four dtypes that read() takes
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes [begin, end) of the data section
  std::int64_t end = 0;
};

using Metadata = std::map<std::string, std::string>;

class SafetensorsFile {
 public:
  // Reads and checks the header; the file stays open for read(). On failure the object is as if new.
  Status open(const std::string& path);
  // The same for a file in memory, which must outlive the object; `label` stands for the path in messages.
  Status open_memory(std::span<const std::byte> file, std::string_view label);

  // In order of their place in the file.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const noexcept;  // null: not there
  [[nodiscard]] const Metadata& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  // An unknown name is kInvalidArgument with the names that exist; a dtype that is not read kUnsupported.
  Status read(std::string_view name, Array* array) const;

 private:
  Status load(std::shared_ptr<const Source> source);

  std::string path_;
  std::shared_ptr<const Source> source_;
  std::int64_t data_begin_ = 0;  // of the data section in the file
  std::vector<TensorInfo> tensors_;
  std::vector<std::size_t> by_name_;  // indices into tensors_, sorted by name
  Metadata metadata_;
};

// Names must be distinct, UTF-8 and not "__metadata__". The data section begins at a multiple of 8 and holds
// the wider types first (else the caller's order), so every tensor is aligned to its elements. The file
// appears by rename, as that of write_npy does.
Status write_safetensors(const std::string& path, std::span<const Array> tensors, const Metadata& metadata);

}  // namespace attn::io
