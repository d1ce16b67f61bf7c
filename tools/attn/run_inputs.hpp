// The inputs of `attn run`: arrays from .npy files or one .safetensors file, and small arrays of numbers from
// the command line. Every error names the option, its value and what is allowed. Tested in tests/cli.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/array.hpp"
#include "io/npy.hpp"
#include "io/safetensors.hpp"

namespace attn::tool {

// A 1-D or 2-D array of whole numbers that fit int32.
struct Integers {
  std::vector<std::int32_t> values;
  std::int64_t rows = 1;
  std::int64_t columns = 0;
};

// The same of fp32 numbers.
struct Numbers {
  std::vector<float> values;
  std::int64_t rows = 1;
  std::int64_t columns = 0;
};

class Inputs {
 public:
  // `path` of the .safetensors file; empty: none.
  Inputs(const std::string& path, bool void2_is_bf16);

  // `source` is a .npy path or @NAME, a tensor of the .safetensors file. `option` is for messages.
  [[nodiscard]] io::Array array(const std::string& option, const std::string& source) const;
  // `source` may also be a list: "0,3,7", rows separated by ';'. Files may hold int32, int64 or floats.
  [[nodiscard]] Integers integers(const std::string& option, const std::string& source) const;
  [[nodiscard]] Numbers numbers(const std::string& option, const std::string& source) const;

 private:
  [[nodiscard]] io::Array integer_tensor(const std::string& option, const io::TensorInfo& info) const;

  std::optional<io::SafetensorsFile> file_;
  io::NpyOptions npy_;
};

// The array as attention's axes (batch, seqlen, heads, head_dim), from rank 4, 3 (no batch) or 2 (no heads
// either); `bhsd`: heads stand before seqlen in the file.
[[nodiscard]] TensorView view_of(const std::string& option, const io::Array& array, bool bhsd);

}  // namespace attn::tool
