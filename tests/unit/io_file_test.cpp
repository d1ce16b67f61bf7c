// What is no file to read (B50's surroundings: directories, pipes, empty files), and outputs that appear
// whole or not at all.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "io/file.hpp"
#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

// Both readers, so that neither opens files in a way of its own.
void expect_both_refuse(const std::string& path, const std::vector<std::string>& parts) {
  Array array;
  SafetensorsFile file;
  EXPECT_TRUE(refused(read_npy(path, {}, &array), StatusCode::kFileError, parts));
  EXPECT_TRUE(refused(file.open(path), StatusCode::kFileError, parts));
}

TEST(IoFile, WhatIsNoRegularFileIsRefusedByKind) {
  const TempDir dir;
  expect_both_refuse(dir / "absent", {dir / "absent", "No such file"});
  expect_both_refuse(dir.path(), {dir.path(), "a directory"});
  expect_both_refuse("", {"empty path"});
  expect_both_refuse("/dev/zero", {"/dev/zero", "a character device"});
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_both_refuse(dir / "pipe", {dir / "pipe", "FIFO"});  // and does not wait for a writer
  write_file(dir / "empty", "");
  expect_both_refuse(dir / "empty", {dir / "empty", "empty"});
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  expect_both_refuse(dir / "dangling", {dir / "dangling", "No such file"});
  expect_both_refuse(dir.path() + "/empty/x", {"Not a directory"});
}

// In a child that root can turn into nobody: root itself may read every file.
TEST(IoFile, UnreadableIsRefused) {
  const TempDir dir;
  write_file(dir / "secret", "x");
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((dir / "secret").c_str(), 0), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) {
      ::_exit(2);
    }
    expect_both_refuse(dir / "secret", {dir / "secret", "Permission denied"});
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
}

TEST(IoFile, AFileCutWhileItIsReadIsAnError) {
  const TempDir dir;
  write_file(dir / "x", std::string(1000, 'x'));
  std::shared_ptr<const Source> source;
  ASSERT_TRUE(open_source(dir / "x", &source).ok());
  ASSERT_EQ(::truncate((dir / "x").c_str(), 600), 0);
  std::vector<std::byte> bytes(1000);
  EXPECT_TRUE(refused(source->read(0, bytes), StatusCode::kFileError, {dir / "x", "cut", "1000", "600"}));
  EXPECT_TRUE(source->read(100, std::span(bytes).first(500)).ok());
}

TEST(IoFile, ByteOrder) {
  std::vector<std::byte> bytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  to_native_order(bytes, 2, /*big_endian=*/true);
  std::uint16_t first = 0;
  std::memcpy(&first, bytes.data(), 2);
  EXPECT_EQ(first, 0x0102);
  to_native_order(bytes, 2, /*big_endian=*/true);
  to_native_order(bytes, 4, /*big_endian=*/false);
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data(), 4);
  EXPECT_EQ(word, 0x04030201U);
}

class IoOutput : public ::testing::TestWithParam<bool> {
 protected:
  Status write(const std::string& path, std::string_view text) {
    OutputFile file;
    if (Status status = file.open(path, GetParam()); !status.ok()) {
      return status;
    }
    if (Status status = file.write(text); !status.ok()) {
      return status;
    }
    if (Status status = file.finish(); !status.ok()) {
      return status;
    }
    return file.publish();
  }
  TempDir dir_;
};

INSTANTIATE_TEST_SUITE_P(Way, IoOutput, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Unnamed" : "Named"; });

TEST_P(IoOutput, AppearsOnlyWhenPublished) {
  write_file(dir_ / "out", "old");
  {
    OutputFile file;
    ASSERT_TRUE(file.open(dir_ / "out", GetParam()).ok());
    ASSERT_TRUE(file.write("new").ok());
    ASSERT_TRUE(file.finish().ok());
    EXPECT_EQ(read_file(dir_ / "out"), "old");
    ASSERT_TRUE(file.publish().ok());
    EXPECT_EQ(read_file(dir_ / "out"), "new");
  }
  EXPECT_EQ(dir_.files(), std::vector<std::string>{"out"});
}

TEST_P(IoOutput, LeavesNothingWhenGivenUp) {
  {
    OutputFile file;
    ASSERT_TRUE(file.open(dir_ / "out", GetParam()).ok());
    ASSERT_TRUE(file.write("new").ok());
    OutputFile moved = std::move(file);
    ASSERT_TRUE(moved.write("er").ok());
  }
  EXPECT_TRUE(dir_.files().empty());
}

TEST_P(IoOutput, KeepsPermissionsAndLinks) {
  write_file(dir_ / "real", "old");
  ASSERT_EQ(::chmod((dir_ / "real").c_str(), 0640), 0);
  std::filesystem::create_symlink("real", dir_ / "link");
  ASSERT_TRUE(write(dir_ / "link", "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
  EXPECT_EQ(read_file(dir_ / "real"), "new");
  struct stat info {};
  ASSERT_EQ(::stat((dir_ / "real").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640U);

  const mode_t before = ::umask(027);
  const Status status = write(dir_ / "fresh", "new");
  ::umask(before);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(::stat((dir_ / "fresh").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640U);
}

TEST_P(IoOutput, RefusesWhatCannotBeReplaced) {
  EXPECT_TRUE(refused(write("", "x"), StatusCode::kFileError, {"empty path"}));
  EXPECT_TRUE(refused(write(dir_.path(), "x"), StatusCode::kFileError, {dir_.path(), "a directory"}));
  EXPECT_TRUE(
      refused(write(dir_ / "no/out", "x"), StatusCode::kFileError, {dir_ / "no/out", "No such file"}));
  EXPECT_TRUE(refused(write(dir_ / "no/", "x"), StatusCode::kFileError, {dir_ / "no/", "'/'"}));
  EXPECT_TRUE(refused(write("/dev/null", "x"), StatusCode::kFileError, {"/dev/null", "character device"}));
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(refused(write(dir_ / "pipe", "x"), StatusCode::kFileError, {dir_ / "pipe", "FIFO"}));
  std::filesystem::create_symlink("nowhere", dir_ / "dangling");
  EXPECT_TRUE(refused(write(dir_ / "dangling", "x"), StatusCode::kFileError, {"symbolic link to nothing"}));
  std::error_code ignored;
  std::filesystem::remove(dir_ / "pipe", ignored);
  EXPECT_EQ(dir_.files(), std::vector<std::string>{"dangling"});
}

// The limit on file size stands for a full disk; in a child, so that it ends there.
TEST_P(IoOutput, AFullDiskLeavesTheOldFileAndNothingElse) {
  write_file(dir_ / "out", "old");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = write(dir_ / "out", std::string(2000, 'x'));
    ::_exit(status.code() == StatusCode::kFileError &&
                    status.message().find("File too large") != std::string::npos
                ? 0
                : 1);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(read_file(dir_ / "out"), "old");
  EXPECT_EQ(dir_.files(), std::vector<std::string>{"out"});
}

TEST(IoOutputKilled, AKilledWriterLeavesNothing) {
  const TempDir dir;
  const int probe = ::open(dir.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (probe < 0) {
    GTEST_SKIP() << "the file system of " << dir.path() << " has no O_TMPFILE";
  }
  ::close(probe);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    OutputFile file;
    const bool ok = file.open(dir / "out").ok() && file.write("half").ok();
    ::kill(::getpid(), ok ? SIGKILL : SIGTERM);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  ASSERT_TRUE(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
  EXPECT_TRUE(dir.files().empty());
}

}  // namespace
}  // namespace attn::io
