// What write_safetensors writes: round trips, the bytes upstream would write, and what it refuses.
#include "io/safetensors.hpp"
#include "io_golden.hpp"
#include "io_test_util.hpp"

namespace attn::io {
namespace {

TEST(IoSafetensorsWrite, ExactBytes) {
  const TempDir dir;
  const std::vector<Array> tensors{make("lse", ElementType::kFloat16, {1}, {1}),
                                   make("o", ElementType::kFloat32, {1, 1}, {-3})};
  ASSERT_TRUE(write_safetensors(dir / "o", tensors, {{"by", "a \"test\""}}).ok());
  // The wider type first; padded with spaces to a multiple of 8.
  const std::string json =
      R"({"__metadata__":{"by":"a \"test\""},"o":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("lse":{"dtype":"F16","shape":[1],"data_offsets":[4,6]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(dir / "o"), little(padded.size(), 8) + padded + f4({-3}) + std::string("\x00\x3C", 2));
}

TEST(IoSafetensorsWrite, RoundTrip) {
  const TempDir dir;
  const std::vector<Array> tensors{make("größe \"q\"\n", ElementType::kBFloat16, {3}, {1, -2, 0.5}),
                                   make("k", ElementType::kFloat64, {}, {1e300}),
                                   make("", ElementType::kFloat32, {0, 7}, {}),
                                   make("v", ElementType::kFloat16, {2, 1}, {65504, -1}),
                                   make("w", ElementType::kFloat32, {1}, {0x1p-149})};
  const Metadata metadata{{"problem", "b1 hq2"}, {"", "ü\x01"}};
  ASSERT_TRUE(write_safetensors(dir / "o", tensors, metadata).ok());
  SafetensorsFile file;
  const Status status = file.open(dir / "o");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const Array& tensor : tensors) {
    Array back;
    ASSERT_TRUE(file.read(tensor.name, &back).ok()) << tensor.name;
    EXPECT_EQ(back.shape, tensor.shape);
    EXPECT_EQ(back.dtype, tensor.dtype);
    EXPECT_EQ(back.bytes, tensor.bytes);
    const TensorInfo* info = file.find(tensor.name);
    EXPECT_EQ(info->begin % static_cast<std::int64_t>(size_of(tensor.dtype)), 0);
  }
  EXPECT_EQ(dir.files(), std::vector<std::string>{"o"});
}

TEST(IoSafetensorsWrite, NothingAtAll) {
  const TempDir dir;
  ASSERT_TRUE(write_safetensors(dir / "o", {}, {}).ok());
  EXPECT_EQ(read_file(dir / "o"), little(8, 8) + "{}      ");
}

TEST(IoSafetensorsWrite, Refuses) {
  const TempDir dir;
  const Array q = make("q", ElementType::kFloat32, {1}, {1});
  const auto expect = [&](const std::vector<Array>& tensors, const Metadata& metadata,
                          const std::vector<std::string>& parts) {
    EXPECT_TRUE(
        refused(write_safetensors(dir / "o", tensors, metadata), StatusCode::kInvalidArgument, parts));
    EXPECT_TRUE(dir.files().empty());
  };
  expect({q, q}, {}, {dir / "o", "tensor 'q'", "used twice"});
  Array other = q;
  other.name = "__metadata__";
  expect({other}, {}, {"'__metadata__'"});
  other.name = "q\xFF";
  expect({q, other}, {}, {"tensor 'q\\xff'", "not UTF-8"});
  expect({q}, {{"a", "\xFF"}}, {"metadata 'a'", "not UTF-8"});
  expect({q}, {{"\xFF", "a"}}, {"metadata '\\xff'", "not UTF-8"});
  other = q;
  other.shape = {2};
  expect({other}, {}, {"tensor 'q'", "(2,)"});
}

}  // namespace
}  // namespace attn::io
