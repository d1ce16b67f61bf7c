// attn::forward on GPUs: the call follows the data to its device, whatever device is current (report
// flashinfer-ai/flashinfer#452: the second GPU's tensors while the first is current), and leaves it as found.
// Skipped without a Hopper GPU, and the tests of two GPUs without a second one.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <bit>
#include <cstdint>
#include <thread>
#include <vector>

#include "cuda/device.hpp"

namespace attn {
namespace {

constexpr std::int64_t kSeqlen = 1024;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kHeadDim = 128;
constexpr std::size_t kElements = kSeqlen * kHeads * kHeadDim;
constexpr std::uint16_t kOne = 0x3F80;  // bf16; the mean of ones is one under any mask
constexpr std::uint16_t kPoison = 0x7FC0;

TensorView view(const void* data) {
  return TensorView::bshd(data, DType::kBFloat16, 1, kSeqlen, kHeads, kHeadDim);
}

// Ones as Q, K and V and a poisoned O on one device.
class OnDevice {
 public:
  explicit OnDevice(int ordinal) {
    EXPECT_TRUE(cuda::Device::get(ordinal, &device_).ok());
    cuda::Device::Scope scope;
    EXPECT_TRUE(scope.enter(*device_).ok());
    EXPECT_EQ(driver().mem_alloc(&ones_, kElements * 2), CUDA_SUCCESS);
    EXPECT_EQ(driver().mem_alloc(&out_, kElements * 2), CUDA_SUCCESS);
    fill(ones_, kOne);
    fill(out_, kPoison);
  }
  ~OnDevice() {
    cuda::Device::Scope scope;
    if (scope.enter(*device_).ok()) {
      driver().mem_free(ones_);
      driver().mem_free(out_);
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] TensorView ones() const { return view(std::bit_cast<const void*>(ones_)); }
  [[nodiscard]] TensorView out() const { return view(std::bit_cast<const void*>(out_)); }
  [[nodiscard]] cuda::Device& device() const { return *device_; }
  [[nodiscard]] const cuda::Driver& driver() const { return device_->driver(); }

  // Whether O is all ones; poisons it again.
  bool take_right_output() {
    cuda::Device::Scope scope;
    EXPECT_TRUE(scope.enter(*device_).ok());
    std::vector<std::uint16_t> host(kElements);
    EXPECT_EQ(driver().stream_synchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(driver().memcpy_to_host(host.data(), out_, kElements * 2), CUDA_SUCCESS);
    fill(out_, kPoison);
    return host == std::vector<std::uint16_t>(kElements, kOne);
  }

 private:
  void fill(CUdeviceptr to, std::uint16_t value) const {
    const std::vector<std::uint16_t> host(kElements, value);
    EXPECT_EQ(driver().memcpy_to_device(to, host.data(), kElements * 2), CUDA_SUCCESS);
  }

  cuda::Device* device_ = nullptr;
  CUdeviceptr ones_ = 0;
  CUdeviceptr out_ = 0;
};

ForwardOptions causal() {
  ForwardOptions options;
  options.causal = true;  // the causal kernels need a workspace, which the call brings
  options.alignment = Alignment::kBottomRight;
  return options;
}

bool has_device(int ordinal) {
  cuda::Device* device = nullptr;
  return cuda::Device::get(ordinal, &device).ok() && device->compute_major() == 9;
}

TEST(CudaForward, FollowsTheData) {
  if (!has_device(0)) {
    GTEST_SKIP() << "no Hopper GPU";
  }
  OnDevice data(0);
  const Status status = forward(data.ones(), data.ones(), data.ones(), data.out(), causal());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(data.take_right_output());
  // What the device's kernels cannot do is refused, not moved to the host.
  TensorView fp32 = data.ones();
  fp32.dtype = DType::kFloat32;
  fp32.shape[1] = kSeqlen / 2;
  TensorView fp32_out = fp32;
  fp32_out.data = data.out().data;
  const Status refused = forward(fp32, fp32, fp32, fp32_out, causal());
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("backend cuda: dtype is fp32"), std::string::npos) << refused.message();
  // Host tensors go to the CPU, on this machine too.
  const std::vector<std::uint16_t> ones(kElements, kOne);
  std::vector<std::uint16_t> out(kElements, kPoison);
  EXPECT_TRUE(
      forward(view(ones.data()), view(ones.data()), view(ones.data()), view(out.data()), causal()).ok());
  EXPECT_EQ(out, ones);
}

// Tensors of one call on the host and on a device (report deepseek-ai/FlashMLA#158): refused by name, and the
// next call works.
TEST(CudaForward, RefusesTensorsOfTwoMemories) {
  if (!has_device(0)) {
    GTEST_SKIP() << "no Hopper GPU";
  }
  OnDevice data(0);
  const std::vector<std::uint16_t> host(kElements, kOne);
  const TensorView on_host = view(host.data());
  const Status q_there = forward(data.ones(), on_host, data.ones(), data.out(), causal());
  EXPECT_EQ(q_there.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(q_there.message().find("k is "), std::string::npos) << q_there.message();
  ForwardOptions on_device = causal();
  on_device.plan.backend = Backend::kCuda;
  const Status q_here = forward(on_host, data.ones(), data.ones(), data.out(), on_device);
  EXPECT_EQ(q_here.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(q_here.message().find("q is "), std::string::npos) << q_here.message();
  EXPECT_TRUE(forward(data.ones(), data.ones(), data.ones(), data.out(), causal()).ok());
  EXPECT_TRUE(data.take_right_output());
}

TEST(CudaForward, SecondDeviceWhileTheFirstIsCurrent) {
  if (!has_device(0) || !has_device(1)) {
    GTEST_SKIP() << "fewer than two Hopper GPUs";
  }
  OnDevice first(0);
  OnDevice second(1);
  cuda::Device::Scope current;
  ASSERT_TRUE(current.enter(first.device()).ok());
  CUcontext before = nullptr;
  ASSERT_EQ(first.driver().ctx_get_current(&before), CUDA_SUCCESS);
  for (OnDevice* data : {&second, &first, &second}) {
    const Status status = forward(data->ones(), data->ones(), data->ones(), data->out(), causal());
    EXPECT_TRUE(status.ok()) << status.message();
    CUcontext after = nullptr;
    EXPECT_EQ(first.driver().ctx_get_current(&after), CUDA_SUCCESS);
    EXPECT_EQ(before, after);
    EXPECT_TRUE(data->take_right_output());
  }
  const Status mixed = forward(first.ones(), second.ones(), first.ones(), first.out(), causal());
  EXPECT_EQ(mixed.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(mixed.message().find("k is memory of device 1"), std::string::npos) << mixed.message();
}

TEST(CudaForward, TwoThreadsOnTwoDevices) {
  if (!has_device(0) || !has_device(1)) {
    GTEST_SKIP() << "fewer than two Hopper GPUs";
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(2, 0);
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    threads.emplace_back([&wrong, ordinal] {
      OnDevice data(ordinal);
      for (int repeat = 0; repeat < 50; ++repeat) {
        const bool ok = forward(data.ones(), data.ones(), data.ones(), data.out(), causal()).ok();
        wrong[static_cast<std::size_t>(ordinal)] += !ok || !data.take_right_output();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace attn
