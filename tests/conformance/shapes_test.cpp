// Every line of shapes/*.txt on every plan of this machine: each SIMD level, each kernel of a Hopper GPU. A
// section,
// `## name: what it proves`, is one test. ATTN_SHAPES_DIR names another folder of shape files.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "support.hpp"

namespace attn::testing {
namespace {

struct Section {
  std::string file;
  std::string name;
  std::string text;
};

class ShapeTest : public ::testing::Test {
 public:
  explicit ShapeTest(Section section) : section_(std::move(section)) {}

  void TestBody() override {
    std::vector<verify::Case> cases;
    const Status status = verify::parse_shapes(section_.text, &cases);
    ASSERT_TRUE(status.ok()) << section_.file << ", section " << section_.name << ": " << status.message();
    ASSERT_FALSE(cases.empty());
    std::size_t checks = 0;
    for (const verify::Case& c : cases) {
      const std::vector<PlanOptions> plans = all_plans(c.problem);
      std::size_t n = 0;
      verify::check_each(c, plans, {}, verify::host_runner(), [&](const verify::Report& report) {
        EXPECT_TRUE(report.passed) << name_of(plans[n]) << ": " << report.line << "\n  " << report.failure;
        ++n;
        return true;
      });
      EXPECT_EQ(n, plans.size());
      checks += n;
    }
    RecordProperty("cases", static_cast<int>(cases.size()));
    std::cout << cases.size() << " cases, " << checks << " checks\n";
  }

 private:
  Section section_;
};

// Says that the GPU's part did not run, where it did not.
TEST(Conformance_cuda, IsUsable) {
  if (!why_no_cuda().empty()) {
    GTEST_SKIP() << why_no_cuda();
  }
  EXPECT_FALSE(all_plans("b1 hq1 hk1 sq1 sk1 d64 bf16").empty());
}

std::vector<Section> read_sections(const std::filesystem::path& path) {
  std::vector<Section> sections;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      sections.push_back({path.stem().string(), line.substr(3, line.find(':') - 3), ""});
    } else if (!sections.empty()) {
      sections.back().text += line + "\n";
    }
  }
  return sections;
}

void register_sections() {
  std::vector<std::filesystem::path> paths;
  const char* folder = std::getenv("ATTN_SHAPES_DIR");
  for (const auto& entry :
       std::filesystem::directory_iterator(folder != nullptr ? folder : ATTN_SHAPES_DIR)) {
    if (entry.path().extension() == ".txt") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    for (const Section& section : read_sections(path)) {
      ::testing::RegisterTest(("Conformance_" + section.file).c_str(), section.name.c_str(), nullptr, nullptr,
                              path.c_str(), 0, [section] { return new ShapeTest(section); });
    }
  }
}

}  // namespace
}  // namespace attn::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  attn::testing::register_sections();
  return RUN_ALL_TESTS();
}
