// Refusals of plans, runs, backends, forward and merge_partials.
#include <cstdlib>

#include "refusal.hpp"

namespace attn::testing {
namespace {

Problem problem_of(const char* line) {
  Problem p;
  EXPECT_TRUE(parse(line, &p).ok());
  return p;
}

constexpr const char* kGood = "b2 hq4 hk2 sq9 sk30 d16 bf16 lse";

// Sets an environment variable for the length of a test.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnv() { unsetenv(name_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
};

Status plan_with(const PlanOptions& options) {
  Plan plan;
  Status status = make_plan(problem_of(kGood), options, &plan);
  EXPECT_EQ(plan.valid(), status.ok());
  return status;
}

TEST(PlanRefusals, Options) {
  PlanOptions options;
  options.backend = static_cast<Backend>(9);
  expect_refusal(plan_with(options), {"backend is 9", "0 (auto), 1 (cpu), 2 (cuda)"});
  options = cpu_plan("", -1);
  expect_refusal(plan_with(options), {"threads is -1", "0 to "});
  options = cpu_plan();
  options.device = -1;
  expect_refusal(plan_with(options), {"device is -1", "0 to "});
  EXPECT_TRUE(plan_with(cpu_plan()).ok());
}

TEST(PlanRefusals, Levels) {
  const std::string best = all_levels()[0].cpu_level;
  for (const char* name : {"avx9", "AVX2", " ", "best"}) {
    expect_refusal(plan_with(cpu_plan(name)), {std::string("cpu_level is ") + name, best});
  }
  {
    const ScopedEnv env("ATTN_CPU_LEVEL", "avx9");
    expect_refusal(plan_with(cpu_plan()), {"ATTN_CPU_LEVEL is avx9", best});
    EXPECT_TRUE(plan_with(cpu_plan(best)).ok()) << "an option of the call goes before the environment";
  }
  {
    const ScopedEnv env("ATTN_CPU_LEVEL", best.c_str());
    EXPECT_TRUE(plan_with(cpu_plan()).ok());
  }
  // ggml-org/llama.cpp#8734, vast-ai/base-image PR#159: a level that the CPU lacks is refused, never run.
  for (const CpuLevel& level : cpu_levels()) {
    if (!level.runnable) {
      expect_refusal(plan_with(cpu_plan(level.name)), {"cpu_level is " + level.name, "which this CPU lacks"},
                     StatusCode::kUnavailable);
    }
  }
}

TEST(PlanRefusals, ThreadsFromTheEnvironment) {
  for (const char* text : {"0", "-3", "two", "2x", "99999999999999999999", "1.5"}) {
    const ScopedEnv env("ATTN_NUM_THREADS", text);
    expect_refusal(plan_with(cpu_plan()),
                   {std::string("ATTN_NUM_THREADS is ") + text, "a whole number from 1"});
    EXPECT_TRUE(plan_with(cpu_plan("", 2)).ok()) << "an option of the call goes before the environment";
  }
}

TEST(PlanRefusals, BackendsOfOtherBuildsOrMachines) {
  PlanOptions options;
  options.backend = Backend::kCuda;
  Plan plan;
  const Status status = make_plan(problem_of(kGood), options, &plan);
  if (!status.ok()) {  // on a machine with a GPU and kernels it may well succeed
    EXPECT_TRUE(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("cuda"), std::string::npos) << status.message();
    EXPECT_FALSE(plan.valid()) << "never a silent fallback";
  }
}

TEST(PlanRefusals, WhatTheCpuCannotDo) {
  for (const auto& [line, words] : {std::pair{"sq1 d513 fp32", "head_dim_qk is 513"},
                                    std::pair{"sq1 d64 dv513 bf16", "head_dim_v is 513"},
                                    std::pair{"sq1 d65536 fp16", "head_dim_qk is 65536"}}) {
    const Problem p = problem_of(line);
    Plan plan;
    expect_refusal(make_plan(p, cpu_plan(), &plan), {words, "1 to 512"}, StatusCode::kUnsupported);
    bool found = false;
    for (const BackendSupport& entry : support(p)) {
      if (entry.backend == Backend::kCpu) {
        found = true;
        EXPECT_FALSE(entry.supported);
        EXPECT_NE(entry.reason.find(words), std::string::npos) << entry.reason;
      }
    }
    EXPECT_TRUE(found);
  }
}

TEST(RunRefusals, PlansWorkspacesAndStreams) {
  verify::Judge judge(case_of("b1 hq2 hk1 sq1 sk900 d64 bf16 splits=4 lse"), {});
  verify::Buffers& buffers = judge.buffers();
  buffers.reset();
  Plan plan;
  ASSERT_TRUE(make_plan(buffers.problem(), cpu_plan(), &plan).ok());
  const std::size_t bytes = plan.workspace_bytes();
  ASSERT_GT(bytes, 0U);
  const verify::Block workspace("workspace", bytes + 64, true);
  const auto before = snapshot(buffers);
  const Tensors& t = buffers.tensors();

  const Status empty = run(Plan(), t, workspace.payload(), bytes);
  expect_refusal(empty, {"plan is empty", "make_plan"});
  expect_refusal(run(plan, t, workspace.payload(), bytes - 1),
                 {"workspace_bytes is " + std::to_string(bytes - 1), "at least " + std::to_string(bytes)});
  expect_refusal(run(plan, t, nullptr, 0), {"workspace_bytes is 0"});
  expect_refusal(run(plan, t, nullptr, bytes), {"workspace is null", std::to_string(bytes)});
  expect_refusal(run(plan, t, workspace.payload() + 8, bytes), {"workspace is ", "multiple of 64"});
  int stream = 0;
  expect_refusal(run(plan, t, workspace.payload(), bytes, &stream), {"stream is given", "null"});
  EXPECT_EQ(snapshot(buffers), before) << "a refused call must write nothing";

  ASSERT_TRUE(run(plan, t, workspace.payload(), bytes).ok());
  EXPECT_TRUE(judge.compare().passed) << "the next good call works";
}

TEST(ForwardRefusals, ShapesOptionsAndOutputs) {
  std::vector<float> memory(2 * 5 * 4 * 8, 1.0F), out(2 * 5 * 4 * 8, 77.0F);
  const TensorView q = TensorView::bshd(memory.data(), DType::kFloat32, 2, 5, 4, 8);
  const TensorView k = TensorView::bshd(memory.data(), DType::kFloat32, 2, 5, 2, 8);
  const TensorView o = TensorView::bshd(out.data(), DType::kFloat32, 2, 5, 4, 8);
  ForwardOptions options;
  options.plan = cpu_plan();

  TensorView bad = k;
  bad.shape[2] = 3;
  expect_refusal(forward(q, bad, bad, o, options), {"heads_q is 4", "a multiple of heads_kv, which is 3"});
  bad = k;
  bad.shape[3] = 4;
  expect_refusal(forward(q, bad, k, o, options), {"k shape is (2, 5, 2, 4)", "(2, 5, 2, 8)"});
  bad = k;
  bad.shape[1] = 4;
  expect_refusal(forward(q, k, bad, o, options), {"v shape is (2, 4, 2, 8)"});
  bad = k;
  bad.dtype = DType::kBFloat16;
  expect_refusal(forward(q, bad, k, o, options), {"k dtype is bf16", "allowed: fp32"});
  bad = q;
  bad.dtype = static_cast<DType>(5);
  expect_refusal(forward(bad, k, k, o, options), {"dtype is 5"});
  bad = q;
  bad.shape[1] = -1;
  expect_refusal(forward(bad, k, k, o, options), {"seqlen_q is -1"});
  bad = o;
  bad.shape[1] = 6;
  expect_refusal(forward(q, k, k, bad, options), {"o shape is (2, 6, 4, 8)"});
  expect_refusal(forward(TensorView{}, k, k, o, options), {" is 0"});

  options.causal = true;
  expect_refusal(forward(q, k, k, o, options), {"alignment is unset", "top-left or bottom-right"});
  options.causal = false;
  options.window_left = -7;
  expect_refusal(forward(q, k, k, o, options), {"window_left is -7"});
  options.window_left = -1;
  options.softcap = -1;
  expect_refusal(forward(q, k, k, o, options), {"softcap is -1"});
  options.softcap = 0;
  options.lse = q;
  expect_refusal(forward(q, k, k, o, options), {"lse shape is (2, 5, 4, 8)", "(2, 4, 5, 1)"});
  options.lse = TensorView{};
  for (const float value : out) {
    ASSERT_EQ(value, 77.0F) << "a refused call must write nothing";
  }
  EXPECT_TRUE(forward(q, k, k, o, options).ok());
  EXPECT_EQ(out[0], 1.0F);
}

TEST(MergeRefusals, PartialsAndOutputs) {
  std::vector<float> o(3 * 8), lse(3), out(3 * 8, 77.0F), out_lse(3, 77.0F);
  const Partial good{TensorView::bshd(o.data(), DType::kFloat32, 1, 3, 1, 8),
                     TensorView::lse(lse.data(), 1, 1, 3)};
  const TensorView target = TensorView::bshd(out.data(), DType::kFloat32, 1, 3, 1, 8);
  const TensorView target_lse = TensorView::lse(out_lse.data(), 1, 1, 3);
  const auto merge = [&](const Partial& partial) {
    const Partial both[] = {good, partial};
    return merge_partials(both, target, target_lse);
  };
  expect_refusal(merge_partials({}, target, target_lse), {"partials is empty", "one or more"});
  Partial bad = good;
  bad.o.shape[1] = 4;
  expect_refusal(merge(bad), {"partials[1].o shape is (1, 4, 1, 8)", "(1, 3, 1, 8)"});
  bad = good;
  bad.o.data = nullptr;
  expect_refusal(merge(bad), {"partials[1].o is null"});
  bad = good;
  bad.lse.data = nullptr;
  expect_refusal(merge(bad), {"partials[1].lse is null"});
  bad = good;
  bad.lse.dtype = DType::kFloat16;
  expect_refusal(merge(bad), {"partials[1].lse dtype is fp16", "allowed: fp32"});
  bad = good;
  bad.lse.shape = {1, 3, 1, 1};
  expect_refusal(merge(bad), {"partials[1].lse shape is (1, 3, 1, 1)", "(1, 1, 3, 1)"});
  bad = good;
  bad.o.strides[3] = 2;
  expect_refusal(merge(bad), {"partials[1].o stride of its last axis is 2"});
  bad.o = target;
  bad.o.strides[1] = 16;
  bad.lse = good.lse;
  expect_refusal(merge(bad), {"o is in the memory of partials[1].o", "exactly that tensor"});
  for (const DType dtype : {static_cast<DType>(3), static_cast<DType>(-1)}) {
    bad = good;
    bad.o.dtype = dtype;
    expect_refusal(merge(bad), {"partials[1].o dtype is "});
    TensorView wrong = target;
    wrong.dtype = dtype;
    expect_refusal(merge_partials({&good, 1}, wrong, target_lse), {"o dtype is "});
  }
  TensorView wrong = target;
  wrong.strides[1] = 0;
  expect_refusal(merge_partials({&good, 1}, wrong, target_lse), {"o strides is ", "share an address"});
  wrong = target;
  wrong.shape[0] = -1;
  expect_refusal(merge_partials({&good, 1}, wrong, target_lse), {"o shape", "-1"});
  for (const float value : out) {
    ASSERT_EQ(value, 77.0F) << "a refused call must write nothing";
  }
  EXPECT_TRUE(merge(good).ok());
  EXPECT_EQ(out[0], 0.0F);
}

}  // namespace
}  // namespace attn::testing
