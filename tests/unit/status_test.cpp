// Status, the names of enums, the version, and TensorView's makers.
#include <gtest/gtest.h>

#include <attn/attn.hpp>

namespace {

TEST(Status, DefaultIsOkAndSilent) {
  const attn::Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), attn::StatusCode::kOk);
  EXPECT_TRUE(status.message().empty());
}

TEST(Status, EveryCodeHasANameAndAFixedValue) {
  const std::pair<attn::StatusCode, int> codes[] = {
      {attn::StatusCode::kOk, 0},          {attn::StatusCode::kInvalidArgument, 1},
      {attn::StatusCode::kUnsupported, 2}, {attn::StatusCode::kUnavailable, 3},
      {attn::StatusCode::kOutOfMemory, 4}, {attn::StatusCode::kBackendError, 5},
      {attn::StatusCode::kFileError, 6},   {attn::StatusCode::kInternal, 7},
  };
  for (const auto& [code, value] : codes) {
    EXPECT_EQ(static_cast<int>(code), value);
    EXPECT_STRNE(attn::to_string(code), "unknown status");
  }
  EXPECT_STREQ(attn::to_string(static_cast<attn::StatusCode>(99)), "unknown status");
}

TEST(Status, NamesOfTypesAndBackends) {
  EXPECT_STREQ(attn::to_string(attn::DType::kFloat32), "fp32");
  EXPECT_STREQ(attn::to_string(attn::DType::kFloat16), "fp16");
  EXPECT_STREQ(attn::to_string(attn::DType::kBFloat16), "bf16");
  EXPECT_EQ(attn::size_of(attn::DType::kFloat32), 4U);
  EXPECT_EQ(attn::size_of(attn::DType::kFloat16), 2U);
  EXPECT_EQ(attn::size_of(attn::DType::kBFloat16), 2U);
  EXPECT_STREQ(attn::to_string(attn::Backend::kAuto), "auto");
  EXPECT_STREQ(attn::to_string(attn::Backend::kCpu), "cpu");
  EXPECT_STREQ(attn::to_string(attn::Backend::kCuda), "cuda");
}

TEST(Status, LibraryHasTheVersionOfItsHeaders) {
  const std::string headers = std::to_string(ATTN_VERSION_MAJOR) + "." + std::to_string(ATTN_VERSION_MINOR) +
                              "." + std::to_string(ATTN_VERSION_PATCH);
  EXPECT_EQ(attn::version(), headers);
}

TEST(TensorView, MakersGiveTheStridesOfTheirMemoryOrder) {
  float data = 0;
  const auto bshd = attn::TensorView::bshd(&data, attn::DType::kFloat32, 2, 3, 5, 7);
  const auto bhsd = attn::TensorView::bhsd(&data, attn::DType::kFloat32, 2, 3, 5, 7);
  EXPECT_EQ(bshd.shape, bhsd.shape);
  EXPECT_EQ(bshd.strides, (std::array<std::int64_t, 4>{105, 35, 7, 1}));
  EXPECT_EQ(bhsd.strides, (std::array<std::int64_t, 4>{105, 7, 21, 1}));
  EXPECT_EQ(bshd.num_elements(), 210);
  const auto lse = attn::TensorView::lse(&data, 2, 5, 3);
  EXPECT_EQ(lse.shape, (std::array<std::int64_t, 4>{2, 5, 3, 1}));
  EXPECT_EQ(lse.strides, (std::array<std::int64_t, 4>{15, 3, 1, 1}));
  EXPECT_FALSE(attn::TensorView{}.present());
}

}  // namespace
