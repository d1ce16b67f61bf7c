// .safetensors from any bytes: no crash, memory bounded by the file, messages that can be printed; and where
// a file is accepted, its tensors cover the data exactly and hold its bytes. Input: a file; or, where it
// begins with '{', a header up to the last '}' and the data, to which the length is added.
#include <cstring>

#include "fuzz.hpp"
#include "io/safetensors.hpp"

namespace attn::io {
namespace {

std::string file_of(std::string_view input) {
  if (input.empty() || input[0] != '{') {
    return std::string(input);
  }
  const std::size_t end = input.rfind('}');
  const std::uint64_t length = end == std::string_view::npos ? input.size() : end + 1;
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(length >> (8 * i) & 0xFF);
  }
  return file + std::string(input);
}

void check(std::string_view bytes) {
  SafetensorsFile file;
  const Status status = file.open_memory(std::as_bytes(std::span(bytes)), "file");
  if (!status.ok()) {
    FUZZ_CHECK(fuzz::printable(status.message()) && status.code() == StatusCode::kFileError,
               status.message());
    FUZZ_CHECK(file.tensors().empty() && file.metadata().empty(), "tensors after a failure");
    return;
  }
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const std::string_view data = bytes.substr(8 + header);
  std::int64_t covered = 0;
  for (const TensorInfo& info : file.tensors()) {
    FUZZ_CHECK(info.begin == covered && info.end >= info.begin, info.name);
    covered = info.end;
    FUZZ_CHECK(file.find(info.name) == &info, info.name);
    Array array;
    const Status read = file.read(info.name, &array);
    if (!info.element_type) {
      FUZZ_CHECK(read.code() == StatusCode::kUnsupported && fuzz::printable(read.message()), read.message());
      continue;
    }
    FUZZ_CHECK(read.ok(), read.message());
    const std::string_view expected =
        data.substr(static_cast<std::size_t>(info.begin), static_cast<std::size_t>(info.end - info.begin));
    FUZZ_CHECK(array.bytes.size() == expected.size() &&
                   (expected.empty() || std::memcmp(array.data(), expected.data(), expected.size()) == 0),
               info.name);
    FUZZ_CHECK(array.shape == info.shape && array.name == info.name, info.name);
  }
  FUZZ_CHECK(covered == static_cast<std::int64_t>(data.size()), std::to_string(covered));
  Array array;
  const Status absent = file.read("no such tensor \x01", &array);
  FUZZ_CHECK(absent.code() == StatusCode::kInvalidArgument && fuzz::printable(absent.message()),
             absent.message());
}

}  // namespace
}  // namespace attn::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attn::io::check(attn::io::file_of({reinterpret_cast<const char*>(data), size}));
  return 0;
}
