// The form of every refusal, and helpers to expect one.
#pragma once

#include <string>
#include <vector>

#include "support.hpp"

namespace attn::testing {

// One sentence without a newline, "<argument> is <value>; allowed: <what>", holding each of the words.
inline void expect_refusal(const Status& status, const std::vector<std::string>& words,
                           StatusCode code = StatusCode::kInvalidArgument) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "wanted: " << word << "\n  got: " << status.message();
  }
  EXPECT_NE(status.message().find("; allowed"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  EXPECT_LT(status.message().size(), 400U) << status.message();
}

// Every byte of every block, guards included.
inline std::vector<std::vector<std::byte>> snapshot(const verify::Buffers& buffers) {
  std::vector<std::vector<std::byte>> copies;
  for (const verify::Block& block : buffers.blocks()) {
    copies.emplace_back(block.base(), block.base() + block.bytes());
  }
  return copies;
}

}  // namespace attn::testing
