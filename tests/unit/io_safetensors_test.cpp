// .safetensors files: B48 (dtypes) and B50 (headers that lie), one defect a file, each with the tensor and
// reason it must be refused with.

#include <cmath>

#include "io/safetensors.hpp"
#include "io/safetensors_header.hpp"
#include "io_golden.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

::testing::AssertionResult bad(const std::string& bytes, const std::vector<std::string>& parts) {
  SafetensorsFile file;
  const Status status = file.open_memory(as_span(bytes), "dir/m.safetensors");
  if (!file.tensors().empty() || !file.metadata().empty() || !file.path().empty()) {
    return ::testing::AssertionFailure() << "the object was changed by a failed open";
  }
  if (!status.message().starts_with("dir/m.safetensors: ")) {
    return ::testing::AssertionFailure() << "the message does not begin with the file: " << status.message();
  }
  return refused(status, StatusCode::kFileError, parts);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

// One tensor q of four bytes, with one thing changed.
std::string q_with(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return safetensors("{" + entry("q", dtype, shape, offsets) + "}", "abcd");
}

TEST(IoSafetensors, ReadsWhatUpstreamWrote) {
  SafetensorsFile file;
  const Status status = file.open_memory(as_span(golden::kSafetensors), "m");
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[0].name, "mask");
  EXPECT_EQ(file.tensors()[0].dtype, "I64");
  EXPECT_EQ(file.tensors()[0].element_type, std::nullopt);
  EXPECT_EQ(file.metadata(), (Metadata{{"model", "tiny"}}));
  Array q;
  ASSERT_TRUE(file.read("q", &q).ok());
  EXPECT_EQ(q.name, "q");
  EXPECT_EQ(q.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(q.dtype, ElementType::kFloat32);
  EXPECT_EQ(values(q), (std::vector<double>{1, 2, 3, 4}));
  Array k;
  ASSERT_TRUE(file.read("k", &k).ok());
  EXPECT_EQ(k.dtype, ElementType::kFloat16);
  EXPECT_EQ(values(k), (std::vector<double>{1, -2.5}));
  EXPECT_TRUE(refused(file.read("mask", &k), StatusCode::kUnsupported, {"m: ", "'mask'", "I64", "BF16"}));
  EXPECT_TRUE(refused(file.read("v", &k), StatusCode::kInvalidArgument, {"m: ", "'v'", "'mask', 'q', 'k'"}));
  EXPECT_EQ(values(k), (std::vector<double>{1, -2.5}));  // untouched by failures
}

TEST(IoSafetensors, FourDtypesAreRead) {  // B48
  const std::string bf16("\x80\x3F\x40\x40\xC0\x7F\x80\xFF", 8);
  const std::string f64("\x00\x00\x00\x00\x00\x00\x04\x40", 8);
  const std::string file_bytes = safetensors(
      "{" + entry("b", "BF16", "[4]", "[0,8]") + "," + entry("d", "F64", "[]", "[8,16]") + "}", bf16 + f64);
  SafetensorsFile file;
  ASSERT_TRUE(file.open_memory(as_span(file_bytes), "m").ok());
  Array array;
  ASSERT_TRUE(file.read("b", &array).ok());
  EXPECT_EQ(array.dtype, ElementType::kBFloat16);
  EXPECT_EQ(array.at(0), 1);
  EXPECT_EQ(array.at(1), 3);
  EXPECT_TRUE(std::isnan(array.at(2)));
  EXPECT_EQ(array.at(3), -INFINITY);
  ASSERT_TRUE(file.read("d", &array).ok());
  EXPECT_EQ(values(array), std::vector<double>{2.5});
}

TEST(IoSafetensors, OtherDtypesAreListedAndNamed) {
  for (const char* dtype : {"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "C64", "F8_E4M3",
                            "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"}) {
    const int bytes = safetensors_bits(dtype) * 4 / 8;
    const std::string offsets = "[0," + std::to_string(bytes) + "]";
    const std::string bytes_of_file = safetensors("{" + entry("x", dtype, "[2,2]", offsets) + "}",
                                                  std::string(static_cast<std::size_t>(bytes), '\1'));
    SafetensorsFile file;
    const Status status = file.open_memory(as_span(bytes_of_file), "m");
    ASSERT_TRUE(status.ok()) << dtype << status.message();
    Array array;
    EXPECT_TRUE(refused(file.read("x", &array), StatusCode::kUnsupported, {"m: ", "'x'", dtype})) << dtype;
  }
}

TEST(IoSafetensors, OddButGood) {
  const std::vector<std::string> good{
      safetensors("{}", ""),
      safetensors("{}     ", ""),
      safetensors("{\"__metadata__\":{}}", ""),
      safetensors("{\"__metadata__\":{\"a\":\"\"}," + entry("", "F32", "[1]", "[0,4]") + "}", "abcd"),
      safetensors("{" + entry("\\u0071\\n", "F32", "[1]", "[0,4]") + "}", "abcd"),
      safetensors("{" + entry("q", "F32", "[0,3]", "[0,0]") + "," + entry("k", "F32", "[1]", "[0,4]") + "," +
                      entry("v", "F32", "[0]", "[4,4]") + "}",
                  "abcd"),
      // In the file k comes first, in the header q.
      safetensors("{" + entry("q", "F16", "[1]", "[2,4]") + "," + entry("k", "F16", "[1]", "[0,2]") + "}",
                  "abcd"),
  };
  for (const std::string& bytes : good) {
    SafetensorsFile file;
    const Status status = file.open_memory(as_span(bytes), "m");
    EXPECT_TRUE(status.ok()) << status.message();
    for (const TensorInfo& info : file.tensors()) {
      Array array;
      EXPECT_TRUE(file.read(info.name, &array).ok()) << info.name;
    }
  }
}

TEST(IoSafetensors, HeaderLength) {  // B50
  const std::string json = "{" + entry("q", "F32", "[1]", "[0,4]") + "}";
  EXPECT_TRUE(bad("", {"empty"}));
  EXPECT_TRUE(bad("1234567", {"header", "7 bytes are too few"}));
  EXPECT_TRUE(bad(little(0, 8) + json, {"header", "length is 0"}));
  EXPECT_TRUE(bad(little(std::uint64_t{1} << 63, 8) + json, {"9223372036854775808", "does not fit"}));
  EXPECT_TRUE(bad(little(~std::uint64_t{0}, 8) + json, {"18446744073709551615", "does not fit"}));
  EXPECT_TRUE(bad(little(~std::uint64_t{0} - 7, 8) + json, {"18446744073709551608"}));  // + 8 wraps to 0
  EXPECT_TRUE(bad(little(json.size() + 8 + 1, 8) + json, {"does not fit"}));            // the file's size + 1
  EXPECT_TRUE(bad(little(json.size() + 1, 8) + json, {"does not fit"}));
  EXPECT_TRUE(bad(little(json.size() - 1, 8) + json, {"malformed JSON"}));
}

TEST(IoSafetensors, ALengthAboveUpstreamsLimit) {
  // A sparse file: its size is real, its blocks are not.
  const TempDir dir;
  write_file(dir / "big", little(100'000'001, 8) + "{}");
  ASSERT_EQ(::truncate((dir / "big").c_str(), 200'000'000), 0);
  SafetensorsFile file;
  EXPECT_TRUE(refused(file.open(dir / "big"), StatusCode::kFileError, {dir / "big", "100000001", "limit"}));
}

TEST(IoSafetensors, OffsetsThatLie) {  // B50
  EXPECT_TRUE(
      bad(q_with("F32", "[1000,1000]", "[0,4]"), {"tensor 'q'", "(1000, 1000)", "4000000 bytes", "[0, 4]"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[8,4]"), {"tensor 'q'", "[8, 4]", "end before they begin"}));
  EXPECT_TRUE(bad(q_with("U8", "[5]", "[0,5]"), {"tensor 'q'", "[0, 5]", "pass the end", "4 bytes"}));
  EXPECT_TRUE(bad(q_with("U8", "[3]", "[0,3]"), {"tensor 'q'", "last", "[3, 4)", "no tensor"}));
  EXPECT_TRUE(bad(q_with("U8", "[3]", "[1,4]"), {"tensor 'q'", "gap", "[0, 1)"}));
  EXPECT_TRUE(bad(q_with("F16", "[1]", "[0,4]"), {"tensor 'q'", "needs 2 bytes", "hold 4"}));
  EXPECT_TRUE(bad(q_with("F32", "[0]", "[0,4]"), {"tensor 'q'", "needs 0 bytes"}));
  EXPECT_TRUE(bad(q_with("F32", "[0]", "[0,0]"), {"tensor 'q'", "[0, 4)", "no tensor"}));
  EXPECT_TRUE(bad(q_with("F32", "[0]", "[9,9]"), {"tensor 'q'", "pass the end"}));
  EXPECT_TRUE(bad(safetensors("{}", "abcd"), {"no tensors", "4 bytes"}));
  const std::string both = entry("q", "U8", "[4]", "[0,4]") + ",";
  EXPECT_TRUE(bad(safetensors("{" + both + entry("k", "U8", "[4]", "[0,4]") + "}", "abcd"),
                  {"tensor 'k'", "overlap", "tensor 'q'", "[0, 4]"}));
  EXPECT_TRUE(bad(safetensors("{" + both + entry("k", "U8", "[4]", "[3,7]") + "}", "abcdefg"),
                  {"tensor 'k'", "overlap", "tensor 'q'"}));
  EXPECT_TRUE(bad(safetensors("{" + both + entry("k", "U8", "[2]", "[6,8]") + "}", "abcdefgh"),
                  {"tensor 'k'", "gap", "[4, 6)"}));
  EXPECT_TRUE(bad(safetensors("{" + both + entry("k", "U8", "[0]", "[2,2]") + "}", "abcd"),
                  {"tensor 'k'", "overlap"}));
}

TEST(IoSafetensors, OffsetsThatAreNotTwoIntegers) {  // B50
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0]"), {"tensor 'q'", "two integers", "is 1"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[]"), {"tensor 'q'", "two integers", "are 0"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,4,4]"), {"tensor 'q'", "two integers", "more"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "4"), {"tensor 'q'", "data_offsets must be a list", "a number"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "null"), {"tensor 'q'", "data_offsets must be a list", "null"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "{}"), {"tensor 'q'", "data_offsets must be a list", "an object"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[-4,0]"), {"tensor 'q'", "data_offsets", "negative number -4"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[-0,4]"), {"tensor 'q'", "data_offsets", "negative number"}));
  EXPECT_TRUE(
      bad(q_with("F32", "[1]", "[0,4.0]"), {"tensor 'q'", "data_offsets", "'4.0'", "not an integer"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,4e0]"), {"tensor 'q'", "data_offsets", "'4e0'"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,\"4\"]"), {"tensor 'q'", "data_offsets", "a string"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,[4]]"), {"tensor 'q'", "data_offsets", "a list"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,true]"), {"tensor 'q'", "data_offsets", "true"}));
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,9223372036854775808]"), {"tensor 'q'", "above 2^63 - 1"}));
  EXPECT_TRUE(
      bad(q_with("F32", "[1]", "[0,18446744073709551620]"), {"tensor 'q'", "data_offsets"}));  // 2^64 + 4
  EXPECT_TRUE(bad(q_with("F32", "[1]", "[0,1e999]"), {"tensor 'q'", "malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"dtype\":\"F32\",\"shape\":[1]}}", "abcd"),
                  {"tensor 'q'", "data_offsets is missing"}));
}

TEST(IoSafetensors, ShapesThatLie) {  // B50
  EXPECT_TRUE(bad(q_with("F32", "[4294967296,4294967296]", "[0,4]"), {"tensor 'q'", "overflows"}));
  EXPECT_TRUE(
      bad(q_with("F32", "[4611686018427387905]", "[0,4]"), {"tensor 'q'", "overflows"}));  // ·4 wraps to 4
  EXPECT_TRUE(bad(q_with("F32", "[0,9223372036854775807,3]", "[0,0]"), {"tensor 'q'", "overflows"}));
  EXPECT_TRUE(bad(q_with("F32", "[-1]", "[0,4]"), {"tensor 'q'", "shape", "negative number -1"}));
  EXPECT_TRUE(bad(q_with("F32", "[1.5]", "[0,4]"), {"tensor 'q'", "shape", "'1.5'"}));
  EXPECT_TRUE(bad(q_with("F32", "[null]", "[0,4]"), {"tensor 'q'", "shape", "null"}));
  EXPECT_TRUE(bad(q_with("F32", "[[1]]", "[0,4]"), {"tensor 'q'", "shape", "a list"}));
  EXPECT_TRUE(bad(q_with("F32", "1", "[0,4]"), {"tensor 'q'", "shape must be a list"}));
  EXPECT_TRUE(bad(q_with("F32", "\"1\"", "[0,4]"), {"tensor 'q'", "shape must be a list"}));
  EXPECT_TRUE(bad(q_with("F4", "[7]", "[0,4]"), {"tensor 'q'", "28 bits", "whole bytes"}));
  std::string many = "[1";
  for (int i = 0; i < 64; ++i) {
    many += ",1";
  }
  EXPECT_TRUE(bad(q_with("F32", many + "]", "[0,4]"), {"tensor 'q'", "more than 64"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "abcd"),
                  {"tensor 'q'", "shape is missing"}));
}

TEST(IoSafetensors, Dtypes) {  // B50
  EXPECT_TRUE(bad(q_with("F33", "[1]", "[0,4]"), {"tensor 'q'", "unknown dtype 'F33'"}));
  EXPECT_TRUE(bad(q_with("f32", "[1]", "[0,4]"), {"tensor 'q'", "unknown dtype 'f32'"}));
  EXPECT_TRUE(bad(q_with("", "[1]", "[0,4]"), {"tensor 'q'", "unknown dtype ''"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", "abcd"),
                  {"tensor 'q'", "dtype must be a string"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"dtype\":[\"F32\"],\"shape\":[1],\"data_offsets\":[0,4]}}", "abcd"),
                  {"tensor 'q'", "dtype must be a string", "a list"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "abcd"),
                  {"tensor 'q'", "dtype is missing"}));
}

TEST(IoSafetensors, TheJsonItself) {  // B50
  const std::string q = entry("q", "F32", "[1]", "[0,4]");
  EXPECT_TRUE(bad(safetensors("[1]", ""), {"header", "JSON object"}));
  EXPECT_TRUE(bad(safetensors("null", ""), {"header", "JSON object"}));
  EXPECT_TRUE(bad(safetensors(" {}", ""), {"header", "begin with '{'"}));
  EXPECT_TRUE(bad(safetensors("\xEF\xBB\xBF{}", ""), {"header", "begin with '{'"}));
  EXPECT_TRUE(bad(safetensors("{", ""), {"header", "malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{" + q, "abcd"), {"malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{" + q + "}x", "abcd"), {"malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{" + q + "}{}", "abcd"), {"malformed JSON"}));
  // nlohmann's parser takes a NUL for the end of the text, whatever follows.
  EXPECT_TRUE(bad(safetensors("{" + q + "}" + std::string(3, '\0'), "abcd"), {"malformed JSON", "NUL"}));
  EXPECT_TRUE(
      bad(safetensors("{" + q + "}" + std::string(1, '\0') + "x", "abcd"), {"malformed JSON", "NUL"}));
  EXPECT_TRUE(bad(safetensors("{" + q + ",}", "abcd"), {"malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{/*c*/" + q + "}", "abcd"), {"malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{\"q\xFF\":{}}", ""), {"malformed JSON"}));
  EXPECT_TRUE(
      bad(safetensors("{\"q\":{\"dtype\":\"F32\",\"shape\":[1", ""), {"tensor 'q'", "malformed JSON"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":7}", ""), {"tensor 'q'", "an object", "a number"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":null}", ""), {"tensor 'q'", "an object", "null"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"scale\":1}}", ""), {"tensor 'q'", "unknown field 'scale'"}));
  // A name that would run wild in a terminal, or be longer than the message can bear.
  EXPECT_TRUE(bad(safetensors("{\"a\\u001b[2J\":7}", ""), {"tensor 'a\\x1b[2J'"}));
  EXPECT_TRUE(bad(safetensors("{\"" + std::string(5000, 'a') + "\":7}", ""), {"aaaa…'"}));
}

TEST(IoSafetensors, Duplicates) {  // B50
  const std::string q = entry("q", "F32", "[1]", "[0,4]");
  EXPECT_TRUE(bad(safetensors("{" + q + "," + q + "}", "abcd"), {"tensor 'q'", "occurs twice"}));
  EXPECT_TRUE(bad(safetensors("{" + q + "," + entry("\\u0071", "F32", "[1]", "[4,8]") + "}", "abcdefgh"),
                  {"tensor 'q'", "occurs twice"}));  // the same name, spelled otherwise
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}", ""),
                  {"tensor 'q'", "'dtype' occurs twice"}));
  EXPECT_TRUE(
      bad(safetensors("{\"q\":{\"shape\":[1],\"shape\":[1]}}", ""), {"tensor 'q'", "'shape' occurs twice"}));
  EXPECT_TRUE(bad(safetensors("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", ""),
                  {"__metadata__", "'a' occurs twice"}));
  EXPECT_TRUE(
      bad(safetensors("{\"__metadata__\":{},\"__metadata__\":{}}", ""), {"'__metadata__' occurs twice"}));
}

TEST(IoSafetensors, Metadata) {  // B50
  EXPECT_TRUE(
      bad(safetensors("{\"__metadata__\":7}", ""), {"__metadata__", "object of strings", "a number"}));
  EXPECT_TRUE(
      bad(safetensors("{\"__metadata__\":[\"a\"]}", ""), {"__metadata__", "object of strings", "a list"}));
  EXPECT_TRUE(
      bad(safetensors("{\"__metadata__\":{\"a\":1}}", ""), {"__metadata__ entry 'a'", "a string is needed"}));
  EXPECT_TRUE(bad(safetensors("{\"__metadata__\":{\"a\":{}}}", ""), {"__metadata__ entry 'a'", "an object"}));
  EXPECT_TRUE(bad(safetensors("{\"__metadata__\":{\"a\":null}}", ""), {"__metadata__ entry 'a'", "null"}));
}

TEST(IoSafetensors, DeepNesting) {  // B50: a million levels, in every place that could recurse
  const auto repeat = [](const std::string& piece) {
    std::string out;
    for (int i = 0; i < 1'000'000; ++i) {
      out += piece;
    }
    return out;
  };
  EXPECT_TRUE(bad(safetensors(repeat("{\"q\":"), ""), {"tensor 'q'", "unknown field 'q'"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":" + repeat("["), ""), {"tensor 'q'", "a list"}));
  EXPECT_TRUE(bad(safetensors("{\"q\":{\"shape\":" + repeat("["), ""), {"tensor 'q'", "a list"}));
  EXPECT_TRUE(bad(safetensors("{\"__metadata__\":" + repeat("{\"a\":"), ""),
                  {"__metadata__ entry 'a'", "an object"}));
}

TEST(IoSafetensors, OnlyTheTensorAskedForIsRead) {
  // A file of 2^40 bytes of which only the last four are there: reading q must touch nothing else.
  const TempDir dir;
  const std::int64_t size = std::int64_t{1} << 40;
  const std::string at = std::to_string(size);
  const std::string head =
      safetensors("{" + entry("huge", "U8", "[" + at + "]", "[0," + at + "]") + "," +
                      entry("q", "F32", "[1]", "[" + at + "," + std::to_string(size + 4) + "]") + "}",
                  "");
  write_file(dir / "m", head);
  const auto end = static_cast<std::int64_t>(head.size()) + size;
  if (::truncate((dir / "m").c_str(), end) != 0) {
    GTEST_SKIP() << "the file system of " << dir.path() << " has no sparse files of 2^40 bytes";
  }
  {
    std::ofstream out(dir / "m", std::ios::binary | std::ios::app);
    out << f4({2.5});
  }
  SafetensorsFile file;
  const Status status = file.open(dir / "m");
  ASSERT_TRUE(status.ok()) << status.message();
  Array q;
  ASSERT_TRUE(file.read("q", &q).ok());
  EXPECT_EQ(values(q), std::vector<double>{2.5});
}

TEST(IoSafetensors, AFileCutAfterOpening) {
  const TempDir dir;
  write_file(dir / "m", q_with("F32", "[1]", "[0,4]"));
  SafetensorsFile file;
  ASSERT_TRUE(file.open(dir / "m").ok());
  ASSERT_EQ(::truncate((dir / "m").c_str(), 20), 0);
  Array array;
  EXPECT_TRUE(refused(file.read("q", &array), StatusCode::kFileError, {dir / "m", "cut", "'q'"}));
}

TEST(IoSafetensors, ReadBeforeOpen) {
  const SafetensorsFile file;
  Array array;
  EXPECT_TRUE(
      refused(file.read("q", &array), StatusCode::kInvalidArgument, {"'q'", "no .safetensors file is open"}));
}

}  // namespace
}  // namespace attn::io
