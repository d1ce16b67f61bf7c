// The CUDA backend through the public API on a GPU: refusals before any launch, after which the next call
// works; the caller's context left as found; two threads; results beside the CPU backend's. Skipped without a
// Hopper GPU.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "core/numeric.hpp"
#include "cuda/device.hpp"
#include "cuda/staging.hpp"

namespace attn {
namespace {

class CudaGpu : public testing::Test {
 protected:
  void SetUp() override {
    options_.backend = Backend::kCuda;
    ASSERT_TRUE(parse("b2 hq4 hk2 sq70 sk90 d64 bf16 causal=br lse", &problem_).ok());
    const Status status = make_plan(problem_, options_, &plan_);
    if (status.code() == StatusCode::kUnavailable) {
      GTEST_SKIP() << status.message();
    }
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(cuda::open_driver(&driver_).ok());
    cuda::Device* device = nullptr;
    ASSERT_TRUE(cuda::Device::get(0, &device).ok());
    ASSERT_TRUE(scope_.enter(*device).ok());
    for (TensorView* view : {&tensors_.q, &tensors_.o}) {
      *view = TensorView::bshd(allocate(2 * 70 * 4 * 64 * 2), DType::kBFloat16, 2, 70, 4, 64);
    }
    for (TensorView* view : {&tensors_.k, &tensors_.v}) {
      *view = TensorView::bshd(allocate(2 * 90 * 2 * 64 * 2), DType::kBFloat16, 2, 90, 2, 64);
    }
    tensors_.lse = TensorView::lse(static_cast<float*>(allocate(2 * 4 * 70 * 4)), 2, 4, 70);
    workspace_ = allocate(plan_.workspace_bytes() + 256);
  }
  void TearDown() override {
    for (const CUdeviceptr p : allocations_) {
      driver_->mem_free(p);
    }
  }
  void* allocate(std::size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_EQ(driver_->mem_alloc(&p, bytes), CUDA_SUCCESS);
    EXPECT_EQ(driver_->memset_d8(p, 0, bytes), CUDA_SUCCESS);
    allocations_.push_back(p);
    return std::bit_cast<void*>(p);
  }
  Status call(const Tensors& tensors) {
    return run(plan_, tensors, workspace_, plan_.workspace_bytes(), nullptr);
  }
  void expect_refused(const Tensors& tensors, StatusCode code, const char* word) {
    const Status status = call(tensors);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_TRUE(call(tensors_).ok());  // the context is as usable as before
    EXPECT_EQ(driver_->stream_synchronize(nullptr), CUDA_SUCCESS);
  }

  Problem problem_;
  PlanOptions options_;
  Plan plan_;
  const cuda::Driver* driver_ = nullptr;
  cuda::Device::Scope scope_;
  Tensors tensors_;
  void* workspace_ = nullptr;
  std::vector<CUdeviceptr> allocations_;
};

TEST_F(CudaGpu, RefusesWhatItCannotReadBeforeAnyLaunch) {
  std::vector<std::uint16_t> host(2 * 70 * 4 * 64);
  Tensors bad = tensors_;
  bad.q.data = host.data();
  expect_refused(bad, StatusCode::kInvalidArgument, "q is ");
  bad = tensors_;
  bad.o.data = host.data();
  expect_refused(bad, StatusCode::kInvalidArgument, "o is ");
  bad = tensors_;
  bad.lse.data = host.data();
  expect_refused(bad, StatusCode::kInvalidArgument, "lse is ");
  bad = tensors_;
  bad.k.data = static_cast<char*>(bad.k.data) + 2;
  expect_refused(bad, StatusCode::kUnsupported, "k is at an address");
  bad = tensors_;
  bad.v.strides[1] += 1;
  expect_refused(bad, StatusCode::kUnsupported, "v's seqlen stride");
  bad = tensors_;
  bad.q.strides[2] = -64;
  expect_refused(bad, StatusCode::kUnsupported, "q's heads stride");
  bad = tensors_;
  bad.q.data = nullptr;
  expect_refused(bad, StatusCode::kInvalidArgument, "q");
}

TEST_F(CudaGpu, LeavesTheCallersContextAsFound) {
  std::thread([&] {
    CUcontext before = nullptr;
    CUcontext after = nullptr;
    EXPECT_EQ(driver_->ctx_get_current(&before), CUDA_SUCCESS);  // a new thread has none
    EXPECT_TRUE(call(tensors_).ok());
    EXPECT_EQ(driver_->ctx_get_current(&after), CUDA_SUCCESS);
    EXPECT_EQ(before, after);
  }).join();
}

TEST_F(CudaGpu, ThreadsPlanAndRunAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Problem problem;
      EXPECT_TRUE(parse(t % 2 == 0 ? "b1 hq2 hk2 sq300 sk300 d128 bf16 causal=br"
                                   : "b1 hq2 hk2 sq300 sk300 d256 fp16",
                        &problem)
                      .ok());
      const std::size_t count = static_cast<std::size_t>(2 * 300 * problem.head_dim_qk);
      std::vector<std::uint16_t> values(count, problem.dtype == DType::kBFloat16 ? 0x3F80 : 0x3C00);  // ones
      std::vector<std::uint16_t> out(count, 0);
      const auto view = [&](void* data) {
        return TensorView::bshd(data, problem.dtype, 1, 300, 2, problem.head_dim_qk);
      };
      Tensors tensors;
      tensors.q = tensors.k = tensors.v = view(values.data());
      tensors.o = view(out.data());
      for (int i = 0; i < 3; ++i) {
        Plan plan;
        ASSERT_TRUE(make_plan(problem, options_, &plan).ok());
        std::unique_ptr<cuda::Staging> staging;
        ASSERT_TRUE(cuda::Staging::open(plan, 0xFF, &staging).ok());
        ASSERT_TRUE(staging->set_tensors(tensors).ok());
        ASSERT_TRUE(staging->run().ok());
        ASSERT_TRUE(staging->fetch().ok());
        EXPECT_EQ(out, values);  // the mean of ones
        std::fill(out.begin(), out.end(), std::uint16_t{0});
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace attn
