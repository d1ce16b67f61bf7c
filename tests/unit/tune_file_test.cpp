// Kernels by name, and the file of tuned choices: what it decides, and that no text, however broken, does
// more than be refused.
#include "core/tune_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <attn/attn.hpp>
#include <attn/version.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace {

using attn::Backend;
using attn::Plan;
using attn::PlanOptions;
using attn::Problem;
using attn::Status;
using attn::StatusCode;
using attn::core::parse_tune_file;
using attn::core::TunedChoice;

constexpr const char* kProblem = "b1 hq2 hk2 sq8 sk8 d16 fp32";

Problem problem() {
  Problem p;
  EXPECT_TRUE(attn::parse(kProblem, &p).ok());
  return p;
}

std::vector<std::string> cpu_kernels() {
  return attn::core::find_backend(Backend::kCpu)->candidates(problem(), {});
}

std::string device() {
  return attn::core::find_backend(Backend::kCpu)->device_name({});
}

std::string choice(const std::string& kernel, const std::string& device, const std::string& library,
                   const std::string& text = kProblem) {
  return R"({"device": ")" + device + R"(", "library": ")" + library + R"(", "problem": ")" + text +
         R"(", "kernel": ")" + kernel + R"(", "more": [1.5e-3, {"a": null}, "\"\u0041\n", true]})";
}

std::string document(const std::string& choices) {
  return R"({"schema": 1, "what": "attn-tune", "choices": [)" + choices + "], \"date\": \"today\"}\n";
}

// A file that ATTN_TUNE_FILE names while this lives.
class TuneFile {
 public:
  explicit TuneFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("attn-tune-" + std::to_string(::getpid()))) {
    std::ofstream(path_, std::ios::binary) << text;
    ::setenv("ATTN_TUNE_FILE", path_.c_str(), 1);
  }
  ~TuneFile() {
    ::unsetenv("ATTN_TUNE_FILE");
    std::filesystem::remove(path_);
  }
  TuneFile(const TuneFile&) = delete;
  TuneFile& operator=(const TuneFile&) = delete;

 private:
  std::filesystem::path path_;
};

Status plan_with(const std::string& kernel, Plan* plan, Backend backend = Backend::kCpu) {
  PlanOptions options;
  options.backend = backend;
  options.kernel = kernel;
  return attn::make_plan(problem(), options, plan);
}

TEST(KernelByName, IsTheOneThatRuns) {
  for (const std::string& name : cpu_kernels()) {
    Plan plan;
    for (const Backend backend : {Backend::kCpu, Backend::kAuto}) {
      const Status status = plan_with(name, &plan, backend);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(plan.kernel(), name);
      EXPECT_EQ(plan.backend(), Backend::kCpu);
    }
  }
}

TEST(KernelByName, AnUnknownOneIsRefusedWithTheNames) {
  for (const char* name : {"sm90:no_such_kernel", "cpu:avx9", "cpu:", "avx2", " "}) {
    for (const Backend backend : {Backend::kCpu, Backend::kAuto}) {
      Plan plan;
      const Status status = plan_with(name, &plan, backend);
      EXPECT_FALSE(status.ok()) << name;
      EXPECT_FALSE(plan.valid());
      EXPECT_NE(status.message().find(std::string("kernel is ") + name), std::string::npos)
          << status.message();
      const std::string level = cpu_kernels().front().substr(4);
      EXPECT_NE(status.message().find(level), std::string::npos) << status.message();
    }
    PlanOptions options;
    options.kernel = name;
    for (const attn::BackendSupport& entry : attn::support(problem(), options)) {
      EXPECT_FALSE(entry.supported) << name;
    }
  }
}

TEST(KernelByName, AnotherLevelThanTheOneAskedForIsRefused) {
  const std::vector<std::string> names = cpu_kernels();
  if (names.size() < 2) {
    GTEST_SKIP() << "this CPU runs one level";
  }
  PlanOptions options;
  options.cpu_level = names[0].substr(4);
  options.kernel = names[1];
  Plan plan;
  EXPECT_EQ(attn::make_plan(problem(), options, &plan).code(), StatusCode::kUnsupported);
}

TEST(TuneFile, DecidesWhereNothingElseDoes) {
  const std::string last = cpu_kernels().back();
  const TuneFile file(document(choice("cpu:else", "another device", attn::version()) + "," +
                               choice("cpu:else", device(), "0.0.1") + "," +
                               choice("cpu:else", device(), attn::version(), "sq9 d16 fp32") + "," +
                               choice(last, device(), attn::version())));
  Plan plan;
  const Status status = plan_with("", &plan);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(plan.kernel(), last);
  EXPECT_EQ(plan.explain().find("tuned: no choice"), std::string::npos);
  ASSERT_TRUE(plan_with(cpu_kernels().front(), &plan).ok());
  EXPECT_EQ(plan.kernel(), cpu_kernels().front());
  Problem other = problem();
  other.seqlen_q = 7;
  ASSERT_TRUE(attn::make_plan(other, {}, &plan).ok());
  EXPECT_EQ(plan.kernel(), cpu_kernels().front());
}

TEST(TuneFile, AChoiceThatIsNoKernelHereIsAnError) {
  if (cpu_kernels().size() < 2) {
    GTEST_SKIP() << "this CPU runs one level: nothing is chosen";
  }
  const TuneFile file(document(choice("cpu:else", device(), attn::version())));
  Plan plan;
  const Status status = plan_with("", &plan);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const std::string& part :
       {std::string("ATTN_TUNE_FILE"), std::string("cpu:else"), cpu_kernels().back()}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(TuneFile, OneThatCannotBeReadIsAnError) {
  Plan plan;
  for (const char* path : {"/no/such/file", "/", "/dev/zero"}) {
    ::setenv("ATTN_TUNE_FILE", path, 1);
    const Status status = plan_with("", &plan);
    ::unsetenv("ATTN_TUNE_FILE");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path;
    EXPECT_NE(status.message().find(std::string("ATTN_TUNE_FILE is ") + path), std::string::npos)
        << status.message();
  }
  const TuneFile large(document("") + std::string(std::size_t{2} << 20, ' '));
  EXPECT_NE(plan_with("", &plan).message().find("larger than"), std::string::npos);
}

TEST(TuneFile, ForwardFollowsTheEnvironment) {
  std::vector<float> data(256, 1.0F);
  const attn::TensorView view = attn::TensorView::bshd(data.data(), attn::DType::kFloat32, 1, 8, 2, 16);
  std::vector<float> out(256);
  const attn::TensorView o = attn::TensorView::bshd(out.data(), attn::DType::kFloat32, 1, 8, 2, 16);
  EXPECT_TRUE(attn::forward(view, view, view, o).ok());
  const TuneFile file("{}");
  EXPECT_FALSE(attn::forward(view, view, view, o).ok()) << "a plan of before is taken for one of now";
}

TEST(ParseTuneFile, Malformed) {
  std::vector<TunedChoice> choices;
  const std::string good = choice("cpu:x", "d", "1");
  ASSERT_TRUE(parse_tune_file(document(good), &choices).ok());
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(choices[0].kernel, "cpu:x");
  EXPECT_EQ(choices[0].problem, problem());
  std::string deep;
  for (int i = 0; i < 100000; ++i) {
    deep += '[';
  }
  const std::string bad[] = {"",
                             "{",
                             "[]",
                             "null",
                             "{}",
                             document(good) + "x",
                             document("{}"),
                             document(good + ","),
                             document(deep),
                             R"({"schema": 2, "what": "attn-tune", "choices": []})",
                             R"({"schema": 1, "what": "x", "choices": []})",
                             R"({"schema": 1, "what": "attn-tune"})",
                             R"({"schema": 1, "what": "attn-tune", "choices": {}})",
                             R"({"schema": 1, "what": "attn-tune", "choices": [], "choices": []})",
                             document(R"({"device": "d", "device": "e"})"),
                             document(choice("", "d", "1")),
                             document(choice(std::string(2000, 'k'), "d", "1")),
                             document(choice("k", "d", "1", "no problem")),
                             document(choice("k", "d", "1", "hq3 hk2 sq1 d8 fp32")),
                             document(R"({"a": 01})"),
                             document(R"({"a": 1.})"),
                             document(R"({"a": nul})"),
                             document("{\"a\": \"\n\"}"),
                             document(R"({"a": "\x"})"),
                             document(R"({"a": "\u12"})"),
                             document(R"({"a": "\uD83D"})"),
                             document(R"({"a" 1})"),
                             document(R"({a: 1})")};
  for (const std::string& text : bad) {
    const Status status = parse_tune_file(text, &choices);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text.substr(0, 200);
    EXPECT_EQ(status.message().rfind("line ", 0), 0U) << status.message();
  }
  EXPECT_EQ(choices.size(), 1U) << "a refused text changed the choices";
  EXPECT_NE(parse_tune_file("{\n\n\"schema\": 1,\n]", &choices).message().find("line 4"), std::string::npos);
}

TEST(ParseTuneFile, EveryPrefixAndChangedByteIsReadOrRefused) {
  const std::string text = document(choice("cpu:x", "d", "1"));
  std::vector<TunedChoice> choices;
  for (std::size_t n = 0; n + 1 < text.size(); ++n) {
    EXPECT_FALSE(parse_tune_file(text.substr(0, n), &choices).ok()) << n;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string changed = text;
    for (int n = 0; n < 1 + i % 3; ++n) {
      changed[random() % changed.size()] = static_cast<char>(random() % 256);
    }
    if (!parse_tune_file(changed, &choices).ok()) {
      continue;
    }
    ASSERT_LE(choices.size(), 1U);
  }
}

}  // namespace
