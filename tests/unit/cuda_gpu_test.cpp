// The CUDA backend through the public API on a GPU: refusals of a plan and of a run before any launch, after
// which the next call works; the caller's context left as found; many threads that plan and run at once;
// children of fork. Skipped without a Hopper GPU.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
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

// More tiles than a GPU has SMs, so that the plan claims them and needs a workspace.
class CudaGpu : public testing::Test {
 protected:
  static constexpr std::int64_t kHeads = 128;
  static constexpr std::size_t kBytesO = 2 * 70 * kHeads * 64 * 2;

  void SetUp() override {
    options_.backend = Backend::kCuda;
    ASSERT_TRUE(parse("b2 hq128 hk64 sq70 sk90 d64 bf16 causal=br lse", &problem_).ok());
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
      *view = TensorView::bshd(allocate(kBytesO), DType::kBFloat16, 2, 70, kHeads, 64);
    }
    for (TensorView* view : {&tensors_.k, &tensors_.v}) {
      *view = TensorView::bshd(allocate(2 * 90 * 64 * 64 * 2), DType::kBFloat16, 2, 90, 64, 64);
    }
    tensors_.lse = TensorView::lse(static_cast<float*>(allocate(2 * kHeads * 70 * 4)), 2, kHeads, 70);
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
    expect_works();
  }
  // The context is as usable as before: O of zeros is zeros, and every bit of it is written.
  void expect_works() {
    const std::size_t bytes = kBytesO;
    ASSERT_EQ(driver_->memset_d8(std::bit_cast<CUdeviceptr>(tensors_.o.data), 0xFF, bytes), CUDA_SUCCESS);
    const Status status = call(tensors_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(driver_->stream_synchronize(nullptr), CUDA_SUCCESS);
    std::vector<std::byte> out(bytes, std::byte{1});
    ASSERT_EQ(driver_->memcpy_to_host(out.data(), std::bit_cast<CUdeviceptr>(tensors_.o.data), bytes),
              CUDA_SUCCESS);
    EXPECT_EQ(out, std::vector<std::byte>(bytes));
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
  std::vector<std::uint16_t> host(kBytesO / 2);
  const struct {
    const char* name;
    TensorView Tensors::*view;
  } views[] = {
      {"q", &Tensors::q}, {"k", &Tensors::k}, {"v", &Tensors::v}, {"o", &Tensors::o}, {"lse", &Tensors::lse}};
  for (const auto& v : views) {
    const std::string name = v.name;
    Tensors bad = tensors_;
    (bad.*v.view).data = host.data();
    expect_refused(bad, StatusCode::kInvalidArgument, (name + " is ").c_str());
    bad = tensors_;
    (bad.*v.view).data = nullptr;
    expect_refused(bad, StatusCode::kInvalidArgument, v.name);
    bad = tensors_;
    (bad.*v.view).shape[1] += 1;
    expect_refused(bad, StatusCode::kInvalidArgument, v.name);
    bad = tensors_;
    (bad.*v.view).dtype = name == "lse" ? DType::kFloat16 : DType::kFloat32;
    expect_refused(bad, StatusCode::kInvalidArgument, v.name);
  }
  Tensors bad = tensors_;
  bad.k.strides[3] = 2;
  expect_refused(bad, StatusCode::kInvalidArgument, "k");
  bad = tensors_;
  bad.o = bad.q;  // what is written shares no memory with an input
  expect_refused(bad, StatusCode::kInvalidArgument, "o");
  bad = tensors_;
  bad.sinks = static_cast<const float*>(tensors_.lse.data);  // not asked for by the problem
  expect_refused(bad, StatusCode::kInvalidArgument, "sinks");
}

TEST_F(CudaGpu, RefusesAWorkspaceThatDoesNotDo) {
  ASSERT_GT(plan_.workspace_bytes(), 0U);
  const std::size_t bytes = plan_.workspace_bytes();
  std::vector<std::byte> host(bytes + 256);
  const struct {
    void* workspace;
    std::size_t bytes;
  } bad[] = {
      {nullptr, bytes},
      {workspace_, bytes - 1},
      {static_cast<char*>(workspace_) + 1, bytes},
      {reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(host.data()) + 255) / 256 * 256), bytes}};
  for (const auto& b : bad) {
    const Status status = run(plan_, tensors_, b.workspace, b.bytes, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("workspace"), std::string::npos) << status.message();
    expect_works();
  }
}

TEST_F(CudaGpu, RefusedPlansLeaveTheNextCallAsItWas) {
  const struct {
    const char* problem;
    StatusCode code;
    const char* words;
  } refusals[] = {
      {"b1 hq1 hk1 sq9 sk9 d64 fp32", StatusCode::kUnsupported, "dtype is fp32"},
      {"b1 hq1 hk1 sq9 sk9 d12 bf16", StatusCode::kUnsupported, "head_dim_qk is 12"},
      {"b1 hq1 hk1 sq9 sk9 d64 dv4 bf16", StatusCode::kUnsupported, "head_dim_v is 4"},
      {"b1 hq1 hk1 sq9 sk9 d264 bf16", StatusCode::kUnsupported, "264"},
      {"b1 hq1 hk1 sq9 sk9 d64 dv512 bf16", StatusCode::kUnsupported, "512"},
      {"b2 hq1 hk1 sq9 sk9 d64 bf16 varlen_q=18 varlen_kv=18", StatusCode::kUnsupported, "cu_seqlens"},
      {"b2 hq1 hk1 sq9 sk9 d64 bf16 seqused", StatusCode::kUnsupported, "seqused_kv"},
      {"b1 hq1 hk1 sq9 sk16 d64 bf16 page=16 pages=1", StatusCode::kUnsupported, "paged"},
      {"b1 hq1 hk1 sq1 sk9 d64 bf16 seqused new=1 causal=br", StatusCode::kUnsupported, ""},
      {"b1 hq1 hk1 sq9 sk9 d64 bf16 splits=2", StatusCode::kUnsupported, "num_splits"},
      {"b1 hq1 hk1 sq9 sk9 d64 bf16 softcap=1e-35", StatusCode::kUnsupported, "softcap"},
      {"b1 hq3 hk2 sq9 sk9 d64 bf16", StatusCode::kInvalidArgument, "heads_q is 3"},
      {"b1 hq1 hk1 sq9 sk9 d0 bf16", StatusCode::kInvalidArgument, "head_dim_qk is 0"},
  };
  for (const auto& r : refusals) {
    Problem problem;
    ASSERT_TRUE(parse(r.problem, &problem).ok()) << r.problem;
    Plan plan;
    const Status status = make_plan(problem, options_, &plan);
    EXPECT_EQ(status.code(), r.code) << r.problem << ": " << status.message();
    EXPECT_NE(status.message().find(r.words), std::string::npos) << status.message();
    EXPECT_FALSE(plan.valid());
    expect_works();
  }
  PlanOptions no_kernel = options_;
  no_kernel.kernel = "sm90:fwd_d64_fp16_full";  // of another dtype
  PlanOptions no_device = options_;
  no_device.device = 1000;
  for (const PlanOptions& options : {no_kernel, no_device}) {
    Plan plan;
    const Status status = make_plan(problem_, options, &plan);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(status.message().empty());
    EXPECT_FALSE(plan.valid());
    expect_works();
  }
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

// Other threads plan while this one forks, so a mutex may be held in the child by nobody.
TEST_F(CudaGpu, AChildOfForkIsToldAndNeverWaits) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> planners;
  for (int i = 0; i < 3; ++i) {
    planners.emplace_back([&] {
      while (!stop) {
        Plan plan;
        EXPECT_TRUE(make_plan(problem_, options_, &plan).ok());
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that waits for a mutex dies, and is no success
      Plan plan;
      const Status planned = make_plan(problem_, options_, &plan);
      const Status ran = call(tensors_);
      const auto told = [](const Status& status) {
        return status.code() == StatusCode::kUnavailable &&
               status.message().find("fork") != std::string::npos;
      };
      _exit(told(planned) && told(ran) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  for (std::thread& planner : planners) {
    planner.join();
  }
  expect_works();
}

TEST_F(CudaGpu, ThreadsPlanAndRunAtOnce) {
  std::vector<std::thread> threads;
  // Every dtype's kernels of several tiles, so that threads load the same ones and different ones at once.
  const char* const lines[] = {"b1 hq2 hk2 sq300 sk300 d128 bf16 causal=br",
                               "b1 hq2 hk2 sq300 sk300 d256 fp16",
                               "b1 hq2 hk2 sq300 sk300 d64 bf16",
                               "b1 hq2 hk2 sq300 sk300 d96 fp16 causal=tl",
                               "b1 hq2 hk2 sq300 sk300 d160 bf16 causal=br window=70,0",
                               "b1 hq2 hk2 sq300 sk300 d192 fp16 softcap=5"};
  for (std::size_t t = 0; t < 24; ++t) {
    threads.emplace_back([&, t] {
      Problem problem;
      ASSERT_TRUE(parse(lines[t % std::size(lines)], &problem).ok());
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
