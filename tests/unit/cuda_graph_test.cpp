// Streams and CUDA graphs on a GPU (reports huggingface/candle PR#3596, thu-ml/SageAttention PR#371,
// Dao-AILab/flash-attention#379, #165: kernels on the default stream, graphs that recorded everything but the
// attention): order of the caller's stream, capture in the strictest mode, replays with other inputs, first
// use inside a capture. Skipped without a Hopper GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/numeric.hpp"
#include "cuda/device.hpp"

namespace attn {
namespace {

// The driver's functions that only these tests call.
#define ATTN_TEXT_(x) #x
#define ATTN_TEXT(x) ATTN_TEXT_(x)
// NOLINTBEGIN(bugprone-macro-parentheses): a member's name cannot have any
#define ATTN_FUNCTION(member, function)                                   \
  decltype(&::function) member = reinterpret_cast<decltype(&::function)>( \
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), ATTN_TEXT(function)))
// NOLINTEND(bugprone-macro-parentheses)

struct GraphDriver {
  ATTN_FUNCTION(begin_capture, cuStreamBeginCapture);
  ATTN_FUNCTION(end_capture, cuStreamEndCapture);
  ATTN_FUNCTION(instantiate, cuGraphInstantiateWithFlags);
  ATTN_FUNCTION(graph_launch, cuGraphLaunch);
  ATTN_FUNCTION(exec_destroy, cuGraphExecDestroy);
  ATTN_FUNCTION(graph_destroy, cuGraphDestroy);
  ATTN_FUNCTION(to_device_async, cuMemcpyHtoDAsync);
  ATTN_FUNCTION(to_host_async, cuMemcpyDtoHAsync);
  ATTN_FUNCTION(alloc_host, cuMemAllocHost);
  ATTN_FUNCTION(free_host, cuMemFreeHost);
  ATTN_FUNCTION(launch_host_func, cuLaunchHostFunc);

  [[nodiscard]] bool complete() const {
    return begin_capture != nullptr && end_capture != nullptr && instantiate != nullptr &&
           graph_launch != nullptr && exec_destroy != nullptr && graph_destroy != nullptr &&
           to_device_async != nullptr && to_host_async != nullptr && alloc_host != nullptr &&
           free_host != nullptr && launch_host_func != nullptr;
  }
};

std::string why_no_gpu() {
  cuda::Device* device = nullptr;
  if (const Status status = cuda::Device::get(0, &device); !status.ok()) {
    return status.message();
  }
  return device->compute_major() == 9 ? std::string() : "no Hopper GPU";
}

constexpr std::uint16_t kPoison = 0x7FA5;

// One causal problem on the device, whose answer its inputs say: key `target` takes all the weight of the
// rows that see it, so that their O is its V, a small integer that depends on `base`.
class Call {
 public:
  // More tiles than a GPU has SMs: the kernel claims them from its workspace.
  static constexpr std::int64_t kSeqlen = 600;
  static constexpr std::int64_t kHeads = 64;

  Call(const GraphDriver& graphs, std::int64_t head_dim) : graphs_(graphs), d_(head_dim) {
    EXPECT_TRUE(cuda::Device::get(0, &device_).ok());
    EXPECT_TRUE(scope_.enter(*device_).ok());
    problem_.dtype = DType::kBFloat16;
    problem_.seqlen_q = problem_.seqlen_kv = kSeqlen;
    problem_.heads_q = problem_.heads_kv = kHeads;
    problem_.head_dim_qk = problem_.head_dim_v = d_;
    problem_.causal = true;
    problem_.alignment = Alignment::kBottomRight;
    for (CUdeviceptr* p : {&q_, &k_, &v_, &o_}) {
      EXPECT_EQ(driver().mem_alloc(p, bytes()), CUDA_SUCCESS);
    }
    EXPECT_EQ(driver().mem_alloc(&workspace_, kWorkspace), CUDA_SUCCESS);
    for (std::uint16_t** p : {&host_k_, &host_v_, &host_o_}) {
      EXPECT_EQ(graphs_.alloc_host(reinterpret_cast<void**>(p), bytes()), CUDA_SUCCESS);
    }
    EXPECT_EQ(driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const std::vector<std::uint16_t> ones(count(), core::float_to_bf16(1.0F));
    EXPECT_EQ(driver().memcpy_to_device(q_, ones.data(), bytes()), CUDA_SUCCESS);
    set_inputs(0, 0);
    poison();
  }
  ~Call() {
    driver().stream_synchronize(stream_);
    driver().stream_destroy(stream_);
    for (const CUdeviceptr p : {q_, k_, v_, o_, workspace_}) {
      driver().mem_free(p);
    }
    for (std::uint16_t* p : {host_k_, host_v_, host_o_}) {
      graphs_.free_host(p);
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] const cuda::Driver& driver() const { return device_->driver(); }
  [[nodiscard]] CUstream stream() const { return stream_; }

  Status make() {
    PlanOptions options;
    options.backend = Backend::kCuda;
    Status status = make_plan(problem_, options, &plan_);
    EXPECT_LE(plan_.valid() ? plan_.workspace_bytes() : 0, kWorkspace);
    return status;
  }
  Status run() {
    return attn::run(plan_, tensors(), std::bit_cast<void*>(workspace_), plan_.workspace_bytes(), stream_);
  }
  Status forward() {
    ForwardOptions options;
    options.causal = true;
    options.alignment = Alignment::kBottomRight;
    options.stream = stream_;
    const Tensors t = tensors();
    return attn::forward(t.q, t.k, t.v, t.o, options);
  }
  [[nodiscard]] const Plan& plan() const { return plan_; }

  // Host copies of K and V for a target and a base.
  void prepare(std::int64_t target, int base) {
    target_ = target;
    base_ = base;
    std::memset(host_k_, 0, bytes());
    const std::uint16_t four = core::float_to_bf16(8.0F);  // logit 8 √d: e^64 at d = 64
    for (std::int64_t n = 0; n < kHeads * d_; ++n) {
      host_k_[target * kHeads * d_ + n] = four;
    }
    for (std::int64_t j = 0; j < kSeqlen; ++j) {
      for (std::int64_t n = 0; n < kHeads * d_; ++n) {
        host_v_[j * kHeads * d_ + n] = value(j, n);
      }
    }
  }
  // Copies them, and O back, in the order of the stream.
  void put() {
    EXPECT_EQ(graphs_.to_device_async(k_, host_k_, bytes(), stream_), CUDA_SUCCESS);
    EXPECT_EQ(graphs_.to_device_async(v_, host_v_, bytes(), stream_), CUDA_SUCCESS);
  }
  void take() { EXPECT_EQ(graphs_.to_host_async(host_o_, o_, bytes(), stream_), CUDA_SUCCESS); }

  void set_inputs(std::int64_t target, int base) {
    prepare(target, base);
    put();
    EXPECT_EQ(driver().stream_synchronize(stream_), CUDA_SUCCESS);
  }
  void poison() {
    const std::vector<std::uint16_t> bad(count(), kPoison);
    EXPECT_EQ(driver().memcpy_to_device(o_, bad.data(), bytes()), CUDA_SUCCESS);
  }
  // Waits for the stream and looks at O, which was taken or is fetched.
  void expect_right(const char* when, bool taken = false) {
    ASSERT_EQ(driver().stream_synchronize(stream_), CUDA_SUCCESS) << when;
    if (!taken) {
      ASSERT_EQ(driver().memcpy_to_host(host_o_, o_, bytes()), CUDA_SUCCESS) << when;
    }
    for (std::int64_t i = 0; i < kSeqlen; ++i) {
      for (std::int64_t n = 0; n < kHeads * d_; ++n) {
        const std::uint16_t got = host_o_[i * kHeads * d_ + n];
        ASSERT_NE(got, kPoison) << when << ": row " << i << " was not written";
        if (i >= target_) {
          ASSERT_EQ(got, value(target_, n)) << when << ": row " << i << ", element " << n;
        }
      }
    }
  }

 private:
  static constexpr std::size_t kWorkspace = 4096;

  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(kSeqlen * kHeads * d_); }
  [[nodiscard]] std::size_t bytes() const { return count() * 2; }
  [[nodiscard]] std::uint16_t value(std::int64_t key, std::int64_t n) const {
    return core::float_to_bf16(static_cast<float>((key * 7 + n + base_) % 100 + 1));
  }
  [[nodiscard]] Tensors tensors() const {
    const auto view = [this](CUdeviceptr p) {
      return TensorView::bshd(std::bit_cast<const void*>(p), DType::kBFloat16, 1, kSeqlen, kHeads, d_);
    };
    Tensors t;
    t.q = view(q_);
    t.k = view(k_);
    t.v = view(v_);
    t.o = view(o_);
    return t;
  }

  const GraphDriver& graphs_;
  std::int64_t d_;
  Problem problem_;
  Plan plan_;
  cuda::Device* device_ = nullptr;
  cuda::Device::Scope scope_;
  CUstream stream_ = nullptr;
  CUdeviceptr q_ = 0, k_ = 0, v_ = 0, o_ = 0, workspace_ = 0;
  std::uint16_t* host_k_ = nullptr;
  std::uint16_t* host_v_ = nullptr;
  std::uint16_t* host_o_ = nullptr;
  std::int64_t target_ = 0;
  int base_ = 0;
};

class CudaGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    graphs_ = std::make_unique<GraphDriver>();
    ASSERT_TRUE(graphs_->complete());
  }

  void begin(Call& call, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_EQ(graphs_->begin_capture(call.stream(), mode), CUDA_SUCCESS);
  }
  // Ends the capture; the graph is null where the capture was spoilt.
  CUgraph end(Call& call) {
    CUgraph graph = nullptr;
    const CUresult result = graphs_->end_capture(call.stream(), &graph);
    EXPECT_TRUE(result == CUDA_SUCCESS || graph == nullptr);
    return graph;
  }
  // Replays a graph with inputs that it was not captured with.
  void expect_replays(Call& call, CUgraph graph) {
    ASSERT_NE(graph, nullptr) << "the capture was invalidated";
    CUgraphExec exec = nullptr;
    ASSERT_EQ(graphs_->instantiate(&exec, graph, 0), CUDA_SUCCESS);
    int base = 3;
    for (const std::int64_t target : {0, 77, 401}) {
      call.set_inputs(target, base);
      call.poison();
      base += 11;
      ASSERT_EQ(graphs_->graph_launch(exec, call.stream()), CUDA_SUCCESS);
      call.expect_right("replay");
    }
    EXPECT_EQ(graphs_->exec_destroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(graphs_->graph_destroy(graph), CUDA_SUCCESS);
  }
  // A call inside a capture: it is captured and replays rightly, or it is refused in words, and the next call
  // outside works.
  void expect_captured_or_refused(Call& call, CUstreamCaptureMode mode,
                                  const std::function<Status()>& inside) {
    begin(call, mode);
    const Status status = inside();
    CUgraph graph = end(call);
    if (status.ok()) {
      std::printf("captured\n");
      expect_replays(call, graph);
    } else {
      std::printf("refused: %s\n", status.message().c_str());
      EXPECT_FALSE(status.message().empty());
      if (graph != nullptr) {
        EXPECT_EQ(graphs_->graph_destroy(graph), CUDA_SUCCESS);
      }
    }
    if (!call.plan().valid()) {
      ASSERT_TRUE(call.make().ok());
    }
    call.set_inputs(5, 1);
    call.poison();
    const Status after = call.run();
    ASSERT_TRUE(after.ok()) << after.message();
    call.expect_right("a call after the capture");
  }

  std::unique_ptr<GraphDriver> graphs_;
};

// These three come first, and each has a kernel of its own, which nothing in this process has used before.
TEST_F(CudaGraph, FirstRunOfAKernelInsideACapture) {
  Call call(*graphs_, 96);
  ASSERT_TRUE(call.make().ok());
  begin(call);
  const Status status = call.run();
  ASSERT_TRUE(status.ok()) << status.message();
  expect_replays(call, end(call));
}

TEST_F(CudaGraph, PlanInsideACapture) {
  Call call(*graphs_, 160);
  expect_captured_or_refused(call, CU_STREAM_CAPTURE_MODE_GLOBAL, [&] {
    const Status status = call.make();
    return status.ok() ? call.run() : status;
  });
}

TEST_F(CudaGraph, PlanInsideARelaxedCapture) {
  Call call(*graphs_, 112);
  expect_captured_or_refused(call, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    const Status status = call.make();
    return status.ok() ? call.run() : status;
  });
}

TEST_F(CudaGraph, CaptureAfterAWarmUpReplaysWithOtherInputs) {
  for (const std::int64_t d : {64, 128, 256}) {
    Call call(*graphs_, d);
    ASSERT_TRUE(call.make().ok());
    ASSERT_TRUE(call.run().ok());
    call.expect_right("warm-up");
    call.poison();
    begin(call);  // global mode: an allocation or a synchronisation would spoil it
    const Status status = call.run();
    ASSERT_TRUE(status.ok()) << status.message();
    expect_replays(call, end(call));
  }
}

// attn::forward brings a workspace of its own, which a capture does not allow: refused, and the capture goes
// on.
TEST_F(CudaGraph, ForwardInsideACapture) {
  Call call(*graphs_, 128);
  ASSERT_TRUE(call.make().ok());
  ASSERT_GT(call.plan().workspace_bytes(), 0U);
  begin(call);
  const Status refused = call.forward();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("stream is being captured"), std::string::npos) << refused.message();
  const Status status = call.run();
  EXPECT_TRUE(status.ok()) << status.message();
  expect_replays(call, end(call));
  call.poison();
  const Status outside = call.forward();
  EXPECT_TRUE(outside.ok()) << outside.message();
  call.expect_right("forward after the capture");
}

// While one thread captures in global mode, no thread may do what could synchronise: a run does none of it.
TEST_F(CudaGraph, RunBesideAnotherThreadsCapture) {
  Call captured(*graphs_, 128);
  Call beside(*graphs_, 128);
  ASSERT_TRUE(captured.make().ok());
  ASSERT_TRUE(beside.make().ok());
  begin(captured);
  std::thread([&] {
    const Status status = beside.run();
    EXPECT_TRUE(status.ok()) << status.message();
  }).join();
  const Status status = captured.run();
  EXPECT_TRUE(status.ok()) << status.message();
  CUgraph graph = end(captured);
  beside.expect_right("beside the capture");
  expect_replays(captured, graph);
}

// The stream is held up, then written to, then read: the call waits its turn and the host does not.
TEST_F(CudaGraph, WorkKeepsTheOrderOfItsStream) {
  using Clock = std::chrono::steady_clock;
  static constexpr auto kHeldUp = std::chrono::milliseconds(400);
  Call call(*graphs_, 128);
  ASSERT_TRUE(call.make().ok());
  ASSERT_TRUE(call.run().ok());
  call.expect_right("warm-up");
  call.poison();
  call.prepare(123, 17);
  const auto start = Clock::now();
  ASSERT_EQ(graphs_->launch_host_func(
                call.stream(), [](void*) { std::this_thread::sleep_for(kHeldUp); }, nullptr),
            CUDA_SUCCESS);
  call.put();
  const Status status = call.run();
  call.take();
  const auto enqueued = Clock::now() - start;
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_LT(enqueued, kHeldUp / 2) << "the call waited for the stream";
  call.expect_right("behind the copies of its stream", true);
  EXPECT_GE(Clock::now() - start, kHeldUp);
}

}  // namespace
}  // namespace attn
