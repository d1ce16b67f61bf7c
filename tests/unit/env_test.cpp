// The table of environment variables, and that docs/environment.md tells of each.
#include "core/env.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace {

using attn::core::Env;

TEST(Env, ReadsTheValueOfTheMoment) {
  ::unsetenv("ATTN_NUM_THREADS");
  EXPECT_FALSE(attn::core::read_env(Env::kNumThreads).has_value());
  ::setenv("ATTN_NUM_THREADS", "3", 1);
  EXPECT_EQ(attn::core::read_env(Env::kNumThreads), "3");
  ::setenv("ATTN_NUM_THREADS", "", 1);  // empty means unset
  EXPECT_FALSE(attn::core::read_env(Env::kNumThreads).has_value());
  ::unsetenv("ATTN_NUM_THREADS");
}

TEST(Env, DocumentTellsOfEveryVariable) {
  std::ifstream file(ATTN_SOURCE_DIR "/docs/environment.md");
  ASSERT_TRUE(file) << "docs/environment.md is missing";
  std::stringstream text;
  text << file.rdbuf();
  for (const attn::core::EnvVar& var : attn::core::env_table()) {
    EXPECT_NE(text.str().find(std::string("`") + var.name + "`"), std::string::npos) << var.name;
  }
}

}  // namespace
