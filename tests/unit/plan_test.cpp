// Plans: the backend is chosen and explained, and run refuses what a plan does not fit.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

using attn::Backend;
using attn::DType;
using attn::Plan;
using attn::PlanOptions;
using attn::Problem;
using attn::StatusCode;
using attn::TensorView;

Problem small_problem() {
  Problem p;
  p.dtype = DType::kFloat32;
  p.seqlen_q = 3;
  p.seqlen_kv = 4;
  p.head_dim_qk = p.head_dim_v = 8;
  return p;
}

struct Call {
  std::vector<float> q = std::vector<float>(24, 0.0F);
  std::vector<float> k = std::vector<float>(32, 0.0F);
  std::vector<float> v = std::vector<float>(32, 2.5F);
  std::vector<float> o = std::vector<float>(24, -7.0F);
  attn::Tensors t;
  Call() {
    t.q = TensorView::bshd(q.data(), DType::kFloat32, 1, 3, 1, 8);
    t.k = TensorView::bshd(k.data(), DType::kFloat32, 1, 4, 1, 8);
    t.v = TensorView::bshd(v.data(), DType::kFloat32, 1, 4, 1, 8);
    t.o = TensorView::bshd(o.data(), DType::kFloat32, 1, 3, 1, 8);
  }
};

struct Workspace {
  explicit Workspace(std::size_t bytes)
      : size(bytes), data(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  ~Workspace() { std::free(data); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  std::size_t size;
  void* data;
};

TEST(Plan, EmptyPlanAnswersAndIsRefused) {
  const Plan plan;
  EXPECT_FALSE(plan.valid());
  EXPECT_EQ(plan.workspace_bytes(), 0U);
  EXPECT_EQ(plan.backend(), Backend::kAuto);
  EXPECT_EQ(plan.kernel(), "");
  EXPECT_EQ(plan.explain(), "no plan\n");
  const attn::Status status = attn::run(plan, {}, nullptr, 0);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

TEST(Plan, RunsAndExplains) {
  Plan plan;
  PlanOptions options;
  options.backend = Backend::kCpu;
  const attn::Status made = attn::make_plan(small_problem(), options, &plan);
  ASSERT_TRUE(made.ok()) << made.message();
  EXPECT_EQ(plan.backend(), Backend::kCpu);
  EXPECT_EQ(plan.problem(), small_problem());
  EXPECT_GE(plan.num_splits(), 1);
  EXPECT_EQ(plan.kernel().rfind("cpu:", 0), 0U) << plan.kernel();
  const std::string text = plan.explain();
  for (const char* part : {"problem: b1 hq1 hk1 sq3 sk4 d8 fp32", "backend: cpu",
                           "kernel: cpu:", "splits: ", "workspace: ", "not cuda: "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " missing in\n" << text;
  }
  Call call;
  Workspace workspace(plan.workspace_bytes());
  const attn::Status status = attn::run(plan, call.t, workspace.data, workspace.size);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(call.o, std::vector<float>(24, 2.5F));
}

TEST(Plan, OnePlanServesManyThreads) {
  Plan plan;
  ASSERT_TRUE(attn::make_plan(small_problem(), {}, &plan).ok());
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (int& passed : good) {
    threads.emplace_back([&plan, &passed] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Call call;
        Workspace workspace(plan.workspace_bytes());
        passed += attn::run(plan, call.t, workspace.data, workspace.size).ok() &&
                  call.o == std::vector<float>(24, 2.5F);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, std::vector<int>(4, 50));
}

TEST(Plan, WorkspaceMustBeThereLargeEnoughAndAligned) {
  Problem p = small_problem();
  p.num_splits = 2;  // partial results need room
  Plan plan;
  ASSERT_TRUE(attn::make_plan(p, {}, &plan).ok());
  ASSERT_GT(plan.workspace_bytes(), 0U);
  Call call;
  Workspace workspace(plan.workspace_bytes());
  const auto refusal = [&](void* data, std::size_t size) {
    const attn::Status status = attn::run(plan, call.t, data, size);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(refusal(workspace.data, workspace.size - 1).find("workspace_bytes"), std::string::npos);
  EXPECT_NE(refusal(nullptr, workspace.size).find("workspace is null"), std::string::npos);
  EXPECT_NE(refusal(static_cast<char*>(workspace.data) + 4, workspace.size).find("aligned"),
            std::string::npos);
  EXPECT_EQ(call.o, std::vector<float>(24, -7.0F)) << "a refused call wrote its output";
  EXPECT_TRUE(attn::run(plan, call.t, workspace.data, workspace.size).ok());
}

TEST(Plan, CpuPlansHaveNoStream) {
  Plan plan;
  PlanOptions options;
  options.backend = Backend::kCpu;
  ASSERT_TRUE(attn::make_plan(small_problem(), options, &plan).ok());
  Call call;
  Workspace workspace(plan.workspace_bytes());
  int stream = 0;
  const attn::Status status = attn::run(plan, call.t, workspace.data, workspace.size, &stream);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("stream"), std::string::npos);
}

TEST(Plan, BadOptionsAreRefused) {
  Plan plan;
  PlanOptions options;
  options.backend = static_cast<Backend>(9);
  EXPECT_EQ(attn::make_plan(small_problem(), options, &plan).code(), StatusCode::kInvalidArgument);
  options = {};
  options.threads = -1;
  const attn::Status status = attn::make_plan(small_problem(), options, &plan);
  EXPECT_NE(status.message().find("threads is -1"), std::string::npos) << status.message();
  EXPECT_FALSE(plan.valid());
}

TEST(Support, NamesEveryBackendAndAReasonWhereOneCannot) {
  const auto entries = attn::support(small_problem());
  ASSERT_EQ(entries.size(), 2U);
  bool cpu = false;
  for (const attn::BackendSupport& entry : entries) {
    EXPECT_EQ(entry.supported, entry.reason.empty());
    cpu = cpu || (entry.backend == Backend::kCpu && entry.supported);
  }
  EXPECT_TRUE(cpu);
  Problem bad = small_problem();
  bad.heads_q = 3;
  bad.heads_kv = 2;
  for (const attn::BackendSupport& entry : attn::support(bad)) {
    EXPECT_FALSE(entry.supported);
    EXPECT_NE(entry.reason.find("heads_q is 3"), std::string::npos) << entry.reason;
  }
}

TEST(Support, HeadDimsBeyondTheBackendAreNamed) {
  Problem p = small_problem();
  p.head_dim_qk = 513;
  Plan plan;
  PlanOptions options;
  options.backend = Backend::kCpu;
  const attn::Status status = attn::make_plan(p, options, &plan);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("head_dim_qk is 513"), std::string::npos) << status.message();
}

}  // namespace
