// .npy from any bytes: no crash, no allocation beyond the file's size, messages that can be printed, and the
// elements where the format says they are. Input: a file; or, where it begins with '1', '2' or '3', the
// version, a header up to the last '}' and the data, from which the file is put together.
#include <algorithm>
#include <cstring>

#include "fuzz.hpp"
#include "io/npy.hpp"

namespace attn::io {
namespace {

std::string file_of(std::string_view input) {
  if (input.empty() || input[0] < '1' || input[0] > '3') {
    return std::string(input);
  }
  const std::size_t end = std::min(input.rfind('}'), input.size() - 1);
  const std::string_view header = input.substr(1, end);
  std::string file = "\x93NUMPY";
  file += static_cast<char>(input[0] - '0');
  file += '\0';
  for (int i = 0; i < (input[0] == '1' ? 2 : 4); ++i) {
    file += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  file += header;
  file += input.substr(end + 1);
  return file;
}

// The element's place in the file, computed the slow way from the array's own shape.
void check_elements(const Array& array, std::string_view file) {
  const std::size_t element = size_of(array.dtype);
  const std::size_t begin = file.size() - array.bytes.size();
  const std::int64_t count = std::min<std::int64_t>(array.num_elements(), 200);
  for (std::int64_t flat = 0; flat < count; ++flat) {
    std::int64_t rest = flat;
    std::int64_t column_flat = 0;
    std::int64_t step = array.num_elements();
    for (std::size_t axis = array.shape.size(); axis-- > 0;) {
      step /= array.shape[axis];
      column_flat += rest % array.shape[axis] * step;
      rest /= array.shape[axis];
    }
    const auto from = static_cast<std::size_t>(array.storage.column_order ? column_flat : flat);
    std::string expected(file.substr(begin + from * element, element));
    if (array.storage.big_endian) {
      std::reverse(expected.begin(), expected.end());
    }
    FUZZ_CHECK(std::memcmp(expected.data(), array.bytes.data() + static_cast<std::size_t>(flat) * element,
                           element) == 0,
               "element " + std::to_string(flat));
  }
}

void check(std::string_view file, bool void2_is_bf16) {
  Array array;
  const Status status = parse_npy(std::as_bytes(std::span(file)), "file", {void2_is_bf16}, &array);
  if (!status.ok()) {
    FUZZ_CHECK(fuzz::printable(status.message()) && status.code() != StatusCode::kInternal, status.message());
    return;
  }
  FUZZ_CHECK(void2_is_bf16 || array.dtype != ElementType::kBFloat16, array.storage.dtype);
  const auto size = static_cast<std::int64_t>(array.bytes.size());
  FUZZ_CHECK(checked_bytes(array.shape, size_of(array.dtype)) == size, shape_string(array.shape));
  FUZZ_CHECK(array.bytes.size() < file.size(), shape_string(array.shape));
  check_elements(array, file);
  for (const ElementType to : {ElementType::kFloat16, ElementType::kBFloat16, ElementType::kFloat32}) {
    Array converted;
    FUZZ_CHECK(convert(array, to, Rounding::kNearestEven, &converted).ok(), to_string(to));
    Array exact;
    if (convert(array, to, Rounding::kRefuse, &exact).ok()) {
      FUZZ_CHECK(exact.bytes == converted.bytes, to_string(to));
    }
  }
}

}  // namespace
}  // namespace attn::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file = attn::io::file_of({reinterpret_cast<const char*>(data), size});
  attn::io::check(file, false);
  attn::io::check(file, true);
  return 0;
}
