#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "io/array.hpp"

namespace attn::io {
namespace {

// Linux transfers at most 0x7ffff000 bytes a call (read(2)); smaller pieces keep a big read interruptible.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 28;

std::string error_string(int error) {
  char buffer[256] = {};
  return strerror_r(error, buffer, sizeof(buffer));  // the GNU one: returns the text
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO (named pipe)";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

class FileSource final : public Source {
 public:
  FileSource(int fd, std::int64_t size, const std::string& path) : fd_(fd) {
    size_ = size;
    label_ = path;
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(fd_); }

  Status read(std::int64_t offset, std::span<std::byte> out) const override {
    std::size_t done = 0;
    while (done < out.size()) {
      const std::size_t piece = std::min(out.size() - done, kMaxTransfer);
      const ssize_t got = ::pread(fd_, out.data() + done, piece, offset + static_cast<std::int64_t>(done));
      if (got > 0) {
        done += static_cast<std::size_t>(got);
      } else if (got == 0) {
        return file_error(label_,
                          fmt::format("was cut while it was read: it had {} bytes when opened and ends "
                                      "at byte {} now",
                                      size_, offset + static_cast<std::int64_t>(done)));
      } else if (errno != EINTR) {
        return file_error(label_, fmt::format("cannot be read: {}", error_string(errno)));
      }
    }
    return {};
  }

 private:
  int fd_;
};

class MemorySource final : public Source {
 public:
  MemorySource(std::span<const std::byte> bytes, std::string_view label) : bytes_(bytes) {
    size_ = static_cast<std::int64_t>(bytes.size());
    label_ = label;
  }

  Status read(std::int64_t offset, std::span<std::byte> out) const override {
    const auto from = static_cast<std::size_t>(offset);
    if (offset < 0 || from > bytes_.size() || out.size() > bytes_.size() - from) {
      return {StatusCode::kInternal,
              fmt::format("{}: read of {} bytes at {} of {}", label_, out.size(), offset, bytes_.size())};
    }
    if (!out.empty()) {
      std::memcpy(out.data(), bytes_.data() + from, out.size());
    }
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

std::optional<std::string> real_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) {
    return std::nullopt;
  }
  std::string result = resolved;
  std::free(resolved);
  return result;
}

// The file that a write to `path` reaches: symbolic links resolved, so that they are kept.
std::optional<std::string> resolve_links(const std::string& path) {
  struct stat link {};
  if (::lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) {
    return path;
  }
  return real_path(path);
}

}  // namespace

Status file_error(const std::string& label, const std::string& what) {
  return {StatusCode::kFileError, fmt::format("{}: {}", label, what)};
}

Status open_source(const std::string& path, std::shared_ptr<const Source>* source) {
  if (path.empty()) {
    return file_error("''", "an empty path names no file");
  }
  // stat before open: opening a device may already do something.
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return file_error(path, fmt::format("cannot be opened: {}", error_string(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return file_error(path, fmt::format("is {}; a regular file is needed", kind_of(info.st_mode)));
  }
  // O_NONBLOCK: should a FIFO have taken the file's place, open() returns at once.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    return file_error(path, fmt::format("cannot be opened: {}", error_string(errno)));
  }
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return file_error(path, "changed while it was opened; a regular file is needed");
  }
  if (info.st_size == 0) {
    ::close(fd);
    return file_error(path, "is empty (0 bytes)");
  }
  *source = std::make_shared<FileSource>(fd, static_cast<std::int64_t>(info.st_size), path);
  return {};
}

Status memory_source(std::span<const std::byte> bytes, std::string_view label,
                     std::shared_ptr<const Source>* source) {
  if (bytes.empty()) {
    return file_error(std::string(label), "is empty (0 bytes)");
  }
  *source = std::make_shared<MemorySource>(bytes, label);
  return {};
}

void to_native_order(std::span<std::byte> bytes, std::size_t element_bytes, bool big_endian) noexcept {
  if (big_endian == (std::endian::native == std::endian::big)) {
    return;
  }
  for (std::size_t at = 0; at + element_bytes <= bytes.size(); at += element_bytes) {
    std::reverse(bytes.data() + at, bytes.data() + at + element_bytes);
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept {
  *this = std::move(other);
}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  if (this != &other) {
    discard();
    path_ = std::move(other.path_);
    target_ = std::move(other.target_);
    directory_ = std::move(other.directory_);
    temporary_ = std::exchange(other.temporary_, {});
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

OutputFile::~OutputFile() {
  discard();
}

void OutputFile::discard() noexcept {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    temporary_.clear();
  }
}

Status OutputFile::fail(const char* doing) const {
  return file_error(path_, fmt::format("cannot {}: {}", doing, error_string(errno)));
}

Status OutputFile::open(const std::string& path, bool allow_unnamed) {
  discard();
  path_ = path;
  if (path.empty()) {
    return file_error("''", "an empty path names no file to write");
  }
  const std::optional<std::string> target = resolve_links(path);
  if (!target) {
    return file_error(path, "is a symbolic link to nothing; give the file that is meant");
  }
  target_ = *target;
  const std::size_t slash = target_.rfind('/');
  directory_ = slash == std::string::npos ? "./" : target_.substr(0, slash + 1);
  // Absolute: later changes of the working directory do not matter, and equal files have equal names.
  if (const std::optional<std::string> absolute = real_path(directory_)) {
    directory_ = *absolute == "/" ? "/" : *absolute + "/";
    target_ = directory_ + target_.substr(slash == std::string::npos ? 0 : slash + 1);
  }

  struct stat info {};
  const bool exists = ::stat(target_.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    return file_error(path, fmt::format("is {}; only a regular file is replaced", kind_of(info.st_mode)));
  }
  if (!exists && path.back() == '/') {
    return file_error(path, "ends in '/'; the name of a file is needed");
  }
  if (exists && ::access(target_.c_str(), W_OK) != 0) {
    return fail("be replaced");
  }
  if (allow_unnamed && ::access("/proc/self/fd", X_OK) == 0) {
    fd_ = ::open(directory_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) {  // no O_TMPFILE on this file system, or a real obstacle that a named file meets as well
    if (Status status = open_named(); !status.ok()) {
      return status;
    }
  }
  if (exists && ::fchmod(fd_, info.st_mode & 07777) != 0) {
    Status status = fail("take over the permissions of the file it replaces");
    discard();
    return status;
  }
  return {};
}

namespace {
// Unique in this process; another process has another id.
std::string temporary_name(const std::string& directory) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}.attn-{}-{}.tmp", directory, ::getpid(), counter.fetch_add(1));
}
constexpr int kNameAttempts = 100;  // names left behind by a killed process of the same id are stepped over
}  // namespace

Status OutputFile::open_named() {
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    std::string name = temporary_name(directory_);
    fd_ = ::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ >= 0) {
      temporary_ = std::move(name);
      return {};
    }
    if (errno != EEXIST) {
      break;
    }
  }
  return fail("be created");
}

Status OutputFile::name_unnamed() {
  const std::string self = fmt::format("/proc/self/fd/{}", fd_);
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    std::string name = temporary_name(directory_);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_ = std::move(name);
      return {};
    }
    if (errno != EEXIST) {
      break;
    }
  }
  return fail("be named");
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd_, bytes.data() + done, std::min(bytes.size() - done, kMaxTransfer));
    if (put >= 0) {
      done += static_cast<std::size_t>(put);
    } else if (errno != EINTR) {
      return fail("be written");
    }
  }
  return {};
}

Status OutputFile::write(std::string_view text) {
  return write(std::as_bytes(std::span(text)));
}

Status OutputFile::finish() {
  // Without fsync a crash after the rename could leave an empty file under the final name.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) {
    return fail("be written to disk");
  }
  return {};
}

Status OutputFile::publish() {
  if (temporary_.empty()) {
    if (Status status = name_unnamed(); !status.ok()) {
      return status;
    }
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    return fail("be put in place");
  }
  temporary_.clear();
  const int closed = ::close(std::exchange(fd_, -1));
  return closed == 0 ? Status() : fail("be closed");
}

Status write_little_endian(OutputFile* file, const Array& array) {
  if constexpr (std::endian::native == std::endian::little) {
    return file->write(array.bytes);
  }
  Bytes swapped = array.bytes;
  to_native_order(swapped, size_of(array.dtype), /*big_endian=*/false);
  return file->write(swapped);
}

}  // namespace attn::io
