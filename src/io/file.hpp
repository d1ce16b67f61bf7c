// Bytes from a file or from memory, and files that appear by rename. Plain reads, not mmap: a file that
// shrinks while it is read gives a Status, where a mapping would give SIGBUS.
// Tested in tests/unit/io_file_test.cpp.
#pragma once

#include <attn/status.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace attn::io {

// A fixed number of bytes, read at any offset, from any thread.
class Source {
 public:
  virtual ~Source() = default;
  // Fills `out` from [offset, offset + out.size()), or fails.
  virtual Status read(std::int64_t offset, std::span<std::byte> out) const = 0;
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }  // the path, for messages

 protected:
  std::int64_t size_ = 0;
  std::string label_;
};

// Regular files that hold at least one byte. Never blocks: a FIFO, a device or a directory is refused.
Status open_source(const std::string& path, std::shared_ptr<const Source>* source);
// The bytes must outlive the source. At least one byte, too.
Status memory_source(std::span<const std::byte> bytes, std::string_view label,
                     std::shared_ptr<const Source>* source);

// "PATH: what": the form of every message of this room.
[[nodiscard]] Status file_error(const std::string& label, const std::string& what);

// Turns `element_bytes`-wide elements from the file's byte order into the machine's, in place.
void to_native_order(std::span<std::byte> bytes, std::size_t element_bytes, bool big_endian) noexcept;

// A file written beside its target and put in its place by publish(). Until then the target is untouched, and
// where the file system allows it (O_TMPFILE) the new file has no name, so even a killed process leaves
// nothing. Replaces only regular files; a symbolic link is followed, the link itself stays.
class OutputFile {
 public:
  OutputFile() noexcept = default;
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();  // removes what was not published

  // allow_unnamed = false: a named temporary file even where O_TMPFILE works.
  Status open(const std::string& path, bool allow_unnamed = true);
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  Status finish();   // no more writes; the bytes are on disk
  Status publish();  // after finish()
  // Where the file will appear, links resolved; two outputs with one target would overwrite each other.
  [[nodiscard]] const std::string& target() const noexcept { return target_; }

 private:
  Status fail(const char* doing) const;
  Status open_named();
  Status name_unnamed();
  void discard() noexcept;

  std::string path_;  // as the caller gave it, for messages
  std::string target_;
  std::string directory_;
  std::string temporary_;  // empty: the file has no name (yet)
  int fd_ = -1;
};

struct Array;

// The array's elements, least significant byte first, as both formats are written.
Status write_little_endian(OutputFile* file, const Array& array);

}  // namespace attn::io
