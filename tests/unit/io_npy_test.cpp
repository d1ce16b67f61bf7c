// .npy files: B47 (column order), B48 (byte orders, dtypes that are no floats, bf16 only on request), files
// as NumPy wrote them, every header defect, and what the writer writes.
#include <cmath>

#include "io/npy.hpp"
#include "io/npy_header.hpp"
#include "io_golden.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

constexpr NpyOptions kBf16{.void2_is_bf16 = true};

Array parse(std::string_view bytes, const NpyOptions& options = {}) {
  Array array;
  const Status status = parse_npy(as_span(bytes), "file.npy", options, &array);
  EXPECT_TRUE(status.ok()) << status.message();
  return array;
}

std::vector<double> counting(int count) {
  std::vector<double> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(i);
  }
  return out;
}

::testing::AssertionResult bad(std::string_view bytes, const std::vector<std::string>& parts,
                               StatusCode code = StatusCode::kFileError, const NpyOptions& options = {}) {
  Array array = make("before", ElementType::kFloat32, {1}, {7});
  const Status status = parse_npy(as_span(bytes), "dir/file.npy", options, &array);
  if (array.name != "before" || array.at(0) != 7) {
    return ::testing::AssertionFailure() << "the array was changed by a failed read";
  }
  if (!status.message().starts_with("dir/file.npy: ")) {
    return ::testing::AssertionFailure() << "the message does not begin with the file: " << status.message();
  }
  return refused(status, code, parts);
}

// A file with one float32 and this header.
std::string with_header(const std::string& header, int version = 1) {
  return npy(header, f4({1}), version);
}

TEST(IoNpyGolden, RowAndColumnOrderAreTheSameArray) {  // B47
  const Array row = parse(golden::kNpyRowOrder);
  const Array column = parse(golden::kNpyColumnOrder);
  EXPECT_EQ(row.shape, (std::vector<std::int64_t>{1, 3, 2, 4}));
  EXPECT_EQ(row.shape, column.shape);
  EXPECT_EQ(values(row), counting(24));
  EXPECT_EQ(row.bytes, column.bytes);
  EXPECT_FALSE(row.storage.column_order);
  EXPECT_TRUE(column.storage.column_order);
  EXPECT_EQ(values(parse(golden::kNpyTransposed)), (std::vector<double>{0, 2, 4, 1, 3, 5}));
}

TEST(IoNpyGolden, OtherTypesAndVersions) {  // B48
  const Array f2 = parse(golden::kNpyBigF2);
  EXPECT_EQ(values(f2), (std::vector<double>{1, -2.5}));
  EXPECT_EQ(f2.dtype, ElementType::kFloat16);
  EXPECT_EQ(f2.storage.dtype, ">f2");
  EXPECT_TRUE(f2.storage.big_endian);
  EXPECT_EQ(values(parse(golden::kNpyBigF8)), std::vector<double>{0.1});
  EXPECT_EQ(values(parse(golden::kNpyVersion2)), (std::vector<double>{1, 2}));
  EXPECT_EQ(values(parse(golden::kNpyVersion3)), (std::vector<double>{1, 2}));
  const Array scalar = parse(golden::kNpyScalar);
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_EQ(values(scalar), std::vector<double>{2.5});
  const Array none = parse(golden::kNpyNone);
  EXPECT_EQ(none.shape, (std::vector<std::int64_t>{0, 5}));
  EXPECT_EQ(none.num_elements(), 0);
}

TEST(IoNpyGolden, Bf16OnlyOnRequest) {  // B48
  EXPECT_TRUE(bad(golden::kNpyBf16, {"'<V2'", "bf16", "request"}, StatusCode::kUnsupported));
  const Array array = parse(golden::kNpyBf16, kBf16);
  EXPECT_EQ(array.dtype, ElementType::kBFloat16);
  EXPECT_EQ(values(array), (std::vector<double>{1, 3}));
}

TEST(IoNpyGolden, ObjectsAndStructuresAreRefused) {
  EXPECT_TRUE(bad(golden::kNpyObject, {"'|O'", "never unpickled"}, StatusCode::kUnsupported));
  EXPECT_TRUE(bad(golden::kNpyStructured, {"structured", "<f4"}, StatusCode::kUnsupported));
}

TEST(IoNpy, EveryByteOrder) {  // B48
  struct Case {
    const char* descr;
    std::string data;
    double expected;
  };
  const std::vector<Case> cases{
      {"'<f2'", {"\x00\x3C", 2}, 1},
      {"'>f2'", {"\x3C\x00", 2}, 1},
      {"'<f4'", {"\x00\x00\x40\xC0", 4}, -3},
      {"'>f4'", {"\xC0\x40\x00\x00", 4}, -3},
      {"'=f4'", f4({-3}), -3},  // the machine's own, as in NumPy
      {"'f4'", f4({-3}), -3},
      {"'<f8'", {"\x00\x00\x00\x00\x00\x00\x04\x40", 8}, 2.5},
      {"'>f8'", {"\x40\x04\x00\x00\x00\x00\x00\x00", 8}, 2.5},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(values(parse(npy(npy_header(c.descr, "(1,)"), c.data))), std::vector<double>{c.expected})
        << c.descr;
  }
}

TEST(IoNpy, Bf16Spellings) {
  const std::string data("\x80\x3F\x40\x40\xC0\x7F\x80\xFF", 8);  // 1, 3, NaN, −inf
  for (const char* descr : {"'V2'", "'<V2'", "'|V2'", "'bfloat16'", "'<bfloat16'"}) {
    const std::string file = npy(npy_header(descr, "(4,)"), data);
    EXPECT_TRUE(bad(file, {descr, "request"}, StatusCode::kUnsupported));
    const Array array = parse(file, kBf16);
    EXPECT_EQ(array.dtype, ElementType::kBFloat16) << descr;
    EXPECT_EQ(array.at(0), 1);
    EXPECT_EQ(array.at(1), 3);
    EXPECT_TRUE(std::isnan(array.at(2)));
    EXPECT_EQ(array.at(3), -INFINITY);
  }
  for (const char* descr : {"'>V2'", "'=V2'", "'>bfloat16'", "'V4'", "'|V1'"}) {
    EXPECT_TRUE(bad(npy(npy_header(descr, "(4,)"), data), {descr}, StatusCode::kUnsupported, kBf16));
  }
}

TEST(IoNpy, DtypesThatAreNoFloatsAreNamed) {  // B48
  struct Case {
    const char* descr;
    const char* reason;
  };
  for (const Case& c : std::vector<Case>{{"'<i4'", "integers"},
                                         {"'>i8'", "integers"},
                                         {"'|u1'", "unsigned"},
                                         {"'|b1'", "bools"},
                                         {"'|O'", "never unpickled"},
                                         {"'O'", "never unpickled"},
                                         {"'<c8'", "complex"},
                                         {"'<U5'", "text"},
                                         {"'|S5'", "text"},
                                         {"'<M8[ns]'", "times"},
                                         {"'<f16'", "not known"},
                                         {"'|f4'", "not known"},
                                         {"'<f'", "not known"},
                                         {"'float32'", "not known"},
                                         {"''", "not known"},
                                         {"'<'", "not known"},
                                         {"'<<f4'", "not known"},
                                         {"'<f4 '", "not known"}}) {
    EXPECT_TRUE(bad(with_header(npy_header(c.descr, "(1,)")), {c.descr, c.reason}, StatusCode::kUnsupported))
        << c.descr;
  }
  EXPECT_TRUE(bad(with_header(npy_header("[('x', '<f4'), ('y', [('z', '<i4', (2, 2))])]", "(1,)")),
                  {"structured", "'x"}, StatusCode::kUnsupported));
  EXPECT_TRUE(
      bad(with_header(npy_header("('<f4', (2,))", "(1,)")), {"structured"}, StatusCode::kUnsupported));
}

TEST(IoNpy, OneDimensionIsTheSameInBothOrders) {  // B47
  for (const char* shape : {"(4,)", "(4, 1, 1, 1)", "(1, 1, 4, 1)"}) {
    for (const bool fortran : {false, true}) {
      const Array array = parse(npy(npy_header("'<f4'", shape, fortran), f4({0, 1, 2, 3})));
      EXPECT_EQ(values(array), counting(4)) << shape << fortran;
    }
  }
  EXPECT_EQ(parse(npy(npy_header("'<f4'", "(2, 0, 3)", true), "")).num_elements(), 0);
}

TEST(IoNpy, ColumnOrderAndBigEndianAtOnce) {
  // (2, 3) holding 0..5: columns (0, 3), (1, 4), (2, 5), as >f2.
  const std::string data("\x00\x00\x42\x00\x3C\x00\x44\x00\x40\x00\x45\x00", 12);
  EXPECT_EQ(values(parse(npy(npy_header("'>f2'", "(2, 3)", true), data))), counting(6));
}

TEST(IoNpy, HeadersThatOtherWritersMake) {
  const std::vector<std::string> headers{
      "{'descr':'<f4','fortran_order':False,'shape':(1,)}",
      "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (1,)}",
      "{'shape': (1L,), 'fortran_order': False, 'descr': '<f4', }",  // Python 2
      "  {'descr': '<f4',\n 'fortran_order': False,\t'shape': ( 1 , ) , } ",
  };
  for (const std::string& header : headers) {
    EXPECT_EQ(values(parse(with_header(header))), std::vector<double>{1}) << header;
  }
  // No padding and no line break at the end.
  const std::string& bare = headers[0];
  EXPECT_EQ(values(parse("\x93NUMPY" + little(1, 2) + little(bare.size(), 2) + bare + f4({1}))),
            std::vector<double>{1});
}

TEST(IoNpy, TheFileAroundTheHeader) {
  const std::string good = with_header(npy_header("'<f4'", "(1,)"));
  EXPECT_TRUE(bad("", {"empty"}));
  EXPECT_TRUE(bad("\x93NUM", {"4 bytes are too few"}));
  EXPECT_TRUE(bad("PK\x03\x04 an archive (.npz)", {"not a .npy file"}));
  EXPECT_TRUE(bad(good.substr(0, 8), {"too few"}));
  EXPECT_TRUE(bad(npy(npy_header("'<f4'", "(1,)"), "", 2).substr(0, 11), {"too few"}));
  for (const auto& [major, minor] : std::vector<std::pair<char, char>>{{0, 0}, {4, 0}, {1, 1}, {-1, 0}}) {
    std::string file = good;
    file[6] = major;
    file[7] = minor;
    EXPECT_TRUE(bad(file, {"version", "1.0, 2.0 and 3.0"}));
  }
  for (std::size_t size = 10; size < good.size(); ++size) {  // cut anywhere
    EXPECT_TRUE(bad(good.substr(0, size), {})) << size;
  }
  EXPECT_TRUE(bad(good + "x", {"needs 4 bytes", "holds 5"}));
  EXPECT_TRUE(bad("\x93NUMPY" + little(2, 2) + little(0xFFFFFFFF, 4) + "{}", {"header length 4294967295"}));
  EXPECT_TRUE(bad("\x93NUMPY" + little(1, 2) + little(0, 2), {"malformed", "header ends"}));
  const std::string long_header(std::size_t{1} << 20, ' ');
  EXPECT_TRUE(bad(npy(long_header + npy_header("'<f4'", "(1,)"), f4({1}), 2), {"header length", "limit"}));
}

TEST(IoNpy, SizesAreCheckedBeforeMemoryIsTaken) {
  const auto shape = [](const std::string& text) { return npy(npy_header("'<f8'", text), f4({1, 1})); };
  EXPECT_TRUE(bad(shape("(1000000000, 1000000000)"), {"needs 8000000000000000000 bytes", "holds 8"}));
  EXPECT_TRUE(bad(shape("(4294967296, 4294967296)"), {"2^63"}));  // 2^67
  EXPECT_TRUE(bad(shape("(2305843009213693952, 8)"), {"2^63"}));  // 2^67, wraps to 0
  EXPECT_TRUE(
      bad(shape("(0, 4611686018427387904, 4611686018427387904)"), {"2^63"}));  // strides would overflow
  EXPECT_TRUE(bad(shape("(9223372036854775808,)"), {"malformed", "2^63"}));
  EXPECT_TRUE(bad(shape("(99999999999999999999999999999999,)"), {"malformed", "2^63"}));
  EXPECT_TRUE(bad(shape("(2,)"), {"(2,)", "needs 16 bytes", "holds 8"}));
  EXPECT_TRUE(bad(shape("(0,)"), {"needs 0 bytes", "holds 8"}));
}

TEST(IoNpy, MalformedHeaders) {
  struct Case {
    std::string header;
    std::string reason;
  };
  const std::string f = "'fortran_order': False";
  const std::string s = "'shape': (1,)";
  const std::string d = "'descr': '<f4'";
  const auto dict = [](const std::string& a, const std::string& b, const std::string& c) {
    return "{" + a + ", " + b + ", " + c + "}";
  };
  std::string deep = "[";
  for (int i = 0; i < 100000 / 2; ++i) {
    deep += '[';
  }
  std::string many = "(";
  for (int i = 0; i < 65; ++i) {
    many += "1,";
  }
  const std::vector<Case> cases{
      {"", "a dict expected"},
      {"[1]", "a dict expected, '['"},
      {"{", "header ends"},
      {"{" + d, "header ends"},
      {"{" + d + "," + f + "}", "'shape' is missing"},
      {"{" + d + "," + s + "}", "'fortran_order' is missing"},
      {"{" + f + "," + s + "}", "'descr' is missing"},
      {"{}", "'descr' is missing"},
      {dict(d, f, s) + " x", "text after the dict"},
      {dict(d, f, s) + std::string(1, '\0'), "text after the dict"},
      {dict(d, f, s + ", 'extra': 1"), "unknown key 'extra'"},
      {dict(d, d, f + ", " + s), "'descr' occurs twice"},
      {dict(d, f, s + "," + s), "'shape' occurs twice"},
      {"{'descr' '<f4'}", "':' after a key"},
      {"{descr: '<f4'}", "a string expected, 'd'"},
      {"{" + d + " " + f + "}", "',' or '}'"},
      {"{'descr': '<f4", "line break"},
      {"{'descr': '<f4\n'}", "line break"},
      {"{'descr': '\\x3cf4'}", "escape"},
      {"{'descr': '\\", "escape"},
      {dict("'descr': 4", f, s), "descr must be"},
      {dict("'descr': None", f, s), "descr must be"},
      {dict("'descr': __import__('os').system('true')", f, s), "descr must be"},
      {dict("'descr': " + deep, f, s), "nests deeper than 16"},
      {dict("'descr': [('x' '<f4')]", f, s), "',' or ')' expected in descr"},
      {dict("'descr': ['x', -1]", f, s), "a string expected"},
      {dict(d, "'fortran_order': 0", s), "True or False"},
      {dict(d, "'fortran_order': Falsehood", s), "True or False"},
      {dict(d, "'fortran_order': 'False'", s), "True or False"},
      {dict(d, f, "'shape': 1"), "tuple"},
      {dict(d, f, "'shape': [1]"), "tuple"},
      {dict(d, f, "'shape': (1)"), "','"},
      {dict(d, f, "'shape': (-1,)"), "negative"},
      {dict(d, f, "'shape': (1.0,)"), "','"},
      {dict(d, f, "'shape': (True,)"), "integers"},
      {dict(d, f, "'shape': ('1',)"), "integers"},
      {dict(d, f, "'shape': (1 1)"), "tuple"},
      {dict(d, f, "'shape': (1, 1 1)"), "',' or ')'"},
      {dict(d, f, "'shape': (,)"), "integers"},
      {dict(d, f, "'shape': (01,)"), "leading 0"},
      {dict(d, f, "'shape': (1_0,)"), "','"},
      {dict(d, f, "'shape': (1, (1,))"), "integers"},
      {dict(d, f, "'shape': " + many + ")"), "more than 64"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(bad(with_header(c.header, 2), {"malformed .npy header", c.reason, "at byte"}))
        << c.header.substr(0, 100);
  }
}

TEST(IoNpy, HeaderTextThatJustEnds) {
  const std::string whole = npy_header("[('x', '<f4')]", "(1, 2)");
  NpyHeader header;
  std::string error;
  ASSERT_TRUE(parse_npy_header(whole, &header, &error)) << error;
  EXPECT_EQ(header.descr, "[('x', '<f4')]");
  EXPECT_TRUE(header.structured);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_npy_header(whole.substr(0, size), &header, &error)) << size;
    EXPECT_NE(error.find("at byte"), std::string::npos) << error;
  }
  EXPECT_FALSE(parse_npy_header("{'descr': '<f4", &header, &error));
  EXPECT_NE(error.find("without its end"), std::string::npos) << error;
}

TEST(IoNpy, WritesWhatNumPyWrites) {
  const TempDir dir;
  std::vector<double> numbers = counting(24);
  ASSERT_TRUE(write_npy(dir / "o.npy", make("", ElementType::kFloat32, {1, 3, 2, 4}, numbers), {}).ok());
  EXPECT_EQ(read_file(dir / "o.npy"), golden::kNpyRowOrder);
  ASSERT_TRUE(write_npy(dir / "o.npy", make("", ElementType::kFloat64, {}, {2.5}), {}).ok());  // replaces
  EXPECT_EQ(read_file(dir / "o.npy"), golden::kNpyScalar);
  ASSERT_TRUE(write_npy(dir / "n.npy", make("", ElementType::kFloat32, {0, 5}, {}), {}).ok());
  EXPECT_EQ(read_file(dir / "n.npy"), golden::kNpyNone);
  ASSERT_TRUE(write_npy(dir / "b.npy", make("", ElementType::kBFloat16, {2}, {1, 3}), kBf16).ok());
  EXPECT_EQ(read_file(dir / "b.npy"), golden::kNpyBf16);
}

TEST(IoNpy, RoundTrips) {
  const TempDir dir;
  for (const ElementType type :
       {ElementType::kFloat16, ElementType::kBFloat16, ElementType::kFloat32, ElementType::kFloat64}) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
             {}, {6}, {2, 3}, {1, 2, 3, 1}, std::vector<std::int64_t>(64, 1)}) {
      const std::int64_t count = *checked_bytes(shape, 1);
      std::vector<double> numbers;
      for (std::int64_t i = 0; i < count; ++i) {
        numbers.push_back(0.5 - static_cast<double>(i));
      }
      const Array array = make("", type, shape, numbers);
      ASSERT_TRUE(write_npy(dir / "a.npy", array, kBf16).ok());
      Array back;
      const Status status = read_npy(dir / "a.npy", kBf16, &back);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(back.dtype, type);
      EXPECT_EQ(back.bytes, array.bytes);
    }
  }
}

TEST(IoNpy, WriterRefuses) {
  const TempDir dir;
  const Array bf16 = make("", ElementType::kBFloat16, {2}, {1, 3});
  EXPECT_TRUE(refused(write_npy(dir / "b.npy", bf16, {}), StatusCode::kUnsupported, {dir / "b.npy", "bf16"}));
  Array torn = make("", ElementType::kFloat32, {2}, {1, 3});
  torn.shape = {3};
  EXPECT_TRUE(
      refused(write_npy(dir / "t.npy", torn, {}), StatusCode::kInvalidArgument, {dir / "t.npy", "(3,)"}));
  EXPECT_TRUE(dir.files().empty());
}

TEST(IoNpy, SeveralOutputsAppearTogetherOrNotAtAll) {
  const TempDir dir;
  const Array o = make("", ElementType::kFloat32, {1}, {1});
  const Array lse = make("", ElementType::kFloat32, {1}, {2});
  const auto write = [&](const std::string& first, const std::string& second) {
    const std::vector<NpyOutput> outputs{{first, &o}, {second, &lse}};
    return write_npy(outputs, {});
  };
  EXPECT_TRUE(
      refused(write(dir / "o.npy", dir / "no/lse.npy"), StatusCode::kFileError, {dir / "no/lse.npy"}));
  EXPECT_TRUE(dir.files().empty());
  EXPECT_TRUE(
      refused(write(dir / "o.npy", dir.path() + "/./o.npy"), StatusCode::kInvalidArgument, {"two outputs"}));
  EXPECT_TRUE(dir.files().empty());
  ASSERT_TRUE(write(dir / "o.npy", dir / "lse.npy").ok());
  EXPECT_EQ(dir.files().size(), 2U);
  Array back;
  ASSERT_TRUE(read_npy(dir / "lse.npy", {}, &back).ok());
  EXPECT_EQ(back.at(0), 2);
}

}  // namespace
}  // namespace attn::io
