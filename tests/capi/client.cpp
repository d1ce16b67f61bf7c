// A C++ program that passes std::string through its own code, built with _GLIBCXX_USE_CXX11_ABI=0 and 1 by
// every C++ compiler there is (report B45: symbols undefined after a change of the C++ ABI). In C++11, so
// that only the C ABI stands between it and the library.
#include <attn/attn.h>

#include <string>

#include "hand_values.h"

#ifndef _GLIBCXX_USE_CXX11_ABI
#error "not libstdc++: the test is about its two string ABIs"
#endif
#if defined(__clang_analyzer__) && !defined(ATTN_EXPECTED_ABI)  // clang-tidy: only compilers.py defines it
#define ATTN_EXPECTED_ABI 1
#endif

int main() {
  CHECK(_GLIBCXX_USE_CXX11_ABI == ATTN_EXPECTED_ABI);
  attn_problem_t problem = ATTN_PROBLEM_INIT;
  size_t length = 0;
  CHECK_OK(attn_problem_to_string(&problem, nullptr, 0, &length));
  std::string text(length + 1, '\0');
  // NOLINTNEXTLINE(readability-container-data-pointer): data() of C++11 is to constants
  CHECK_OK(attn_problem_to_string(&problem, &text[0], text.size(), nullptr));
  text.resize(length);
  CHECK(text == "b1 hq1 hk1 sq1 sk1 d64 bf16");
  return hand_values();
}
