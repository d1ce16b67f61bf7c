// Files against NumPy and safetensors themselves, where Python has them (ATTN_TEST_PYTHON names another
// Python); io_golden.hpp holds the same proof in small for machines without.
#include <sys/wait.h>

#include <cstdlib>

#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

constexpr NpyOptions kBf16{.void2_is_bf16 = true};

// The exit status of io_interop.py.
int python(const std::string& action, const std::string& folder) {
  const char* chosen = std::getenv("ATTN_TEST_PYTHON");
  const std::string interpreter = chosen != nullptr ? chosen : ATTN_PYTHON;
  const std::string line = "'" + interpreter + "' '" ATTN_INTEROP_SCRIPT "' " + action + " '" + folder + "'";
  const int result = std::system(line.c_str());  // NOLINT(cert-env33-c): no text from outside the tests
  return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}
constexpr int kNoNumPy = 77;

void expect_counting(const Array& array, const std::string& file) {
  for (std::int64_t i = 0; i < array.num_elements(); ++i) {
    ASSERT_EQ(array.at(i), static_cast<double>(i) - 2.5) << file << " element " << i;
  }
}

TEST(IoInterop, ReadsWhatNumPyAndSafetensorsWrite) {
  const TempDir dir;
  const int result = python("write", dir.path());
  if (result == kNoNumPy) {
    GTEST_SKIP() << "Python has no numpy (Debian: python3-numpy)";
  }
  ASSERT_EQ(result, 0);
  std::size_t arrays = 0;
  for (const std::string& name : dir.files()) {
    if (name.ends_with(".npy")) {
      Array array;
      const Status status = read_npy(dir / name, kBf16, &array);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_counting(array, name);
      ++arrays;
    } else {
      SafetensorsFile file;
      const Status status = file.open(dir / name);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(file.tensors().size(), 3U);
      for (const TensorInfo& info : file.tensors()) {
        Array array;
        ASSERT_TRUE(file.read(info.name, &array).ok());
        expect_counting(array, info.name);
      }
    }
  }
  EXPECT_GE(arrays, 90U);
}

TEST(IoInterop, NumPyAndSafetensorsReadWhatIsWritten) {
  const TempDir dir;
  const std::vector<double> numbers{-2.5, -1.5, -0.5, 0.5, 1.5, 2.5};
  const std::vector<Array> arrays{make("f2", ElementType::kFloat16, {2, 3}, numbers),
                                  make("f4", ElementType::kFloat32, {2, 3}, numbers),
                                  make("f8", ElementType::kFloat64, {2, 3}, numbers)};
  for (const Array& array : arrays) {
    ASSERT_TRUE(write_npy(dir / (array.name + ".npy"), array, {}).ok());
  }
  ASSERT_TRUE(write_npy(dir / "bf16.npy", make("", ElementType::kBFloat16, {2, 3}, numbers), kBf16).ok());
  ASSERT_TRUE(write_safetensors(dir / "o.safetensors", arrays, {{"k", "v"}}).ok());
  const int result = python("check", dir.path());
  if (result == kNoNumPy) {
    GTEST_SKIP() << "Python has no numpy (Debian: python3-numpy)";
  }
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace attn::io
