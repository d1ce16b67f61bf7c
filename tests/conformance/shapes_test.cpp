// Every line of shapes/*.txt at every SIMD level of this machine. A section, `## name: what it proves`, is
// one test.
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
    const std::vector<PlanOptions> levels = all_levels();
    ASSERT_FALSE(levels.empty());
    for (const verify::Case& c : cases) {
      std::size_t level = 0;
      verify::check_each(c, levels, {}, verify::host_runner(), [&](const verify::Report& report) {
        EXPECT_TRUE(report.passed) << levels[level].cpu_level << ": " << report.line << "\n  "
                                   << report.failure;
        ++level;
        return true;
      });
    }
    RecordProperty("cases", static_cast<int>(cases.size()));
    std::cout << cases.size() << " cases at " << levels.size() << " levels\n";
  }

 private:
  Section section_;
};

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
  for (const auto& entry : std::filesystem::directory_iterator(ATTN_SHAPES_DIR)) {
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
