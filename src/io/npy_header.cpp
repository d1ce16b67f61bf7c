#include "io/npy_header.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "io/text.hpp"

namespace attn::io {
namespace {

// A structured descr nests one list and one tuple per level of structure; real ones stay far below this.
constexpr int kMaxDepth = 16;

class Parser {
 public:
  Parser(std::string_view text, std::string* error) : text_(text), error_(error) {}

  bool header(NpyHeader* out) {
    bool have_descr = false;
    bool have_order = false;
    bool have_shape = false;
    if (!expect('{', "a dict")) {
      return false;
    }
    while (!take('}')) {
      std::string key;
      if (!string(&key) || !expect(':', "':' after a key")) {
        return false;
      }
      bool* have = key == "descr" ? &have_descr : key == "fortran_order" ? &have_order : &have_shape;
      if (have == &have_shape && key != "shape") {
        return fail(
            fmt::format("unknown key {} (descr, fortran_order and shape are the keys)", quote_text(key)));
      }
      if (std::exchange(*have, true)) {
        return fail(fmt::format("key {} occurs twice", quote_text(key)));
      }
      const bool ok = have == &have_descr   ? descr(out)
                      : have == &have_order ? boolean(&out->fortran_order)
                                            : shape(&out->shape);
      if (!ok) {
        return false;
      }
      if (!take(',')) {
        if (!expect('}', "',' or '}' after a value")) {
          return false;
        }
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) {
      return fail("text after the dict");
    }
    if (!have_descr || !have_order || !have_shape) {
      return fail(fmt::format("key '{}' is missing", !have_descr   ? "descr"
                                                     : !have_order ? "fortran_order"
                                                                   : "shape"));
    }
    return true;
  }

 private:
  bool fail(const std::string& reason) {
    if (error_->empty()) {
      *error_ = fmt::format("{}, at byte {} of the header", reason, at_);
    }
    return false;
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  [[nodiscard]] char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) {
      return false;
    }
    ++at_;
    return true;
  }
  bool expect(char c, const char* what) {
    if (take(c)) {
      return true;
    }
    if (at_ == text_.size()) {
      return fail(fmt::format("{} expected, the header ends", what));
    }
    return fail(fmt::format("{} expected, {} found", what, quote_text(text_.substr(at_, 1))));
  }
  bool word(std::string_view expected) {
    skip_space();
    if (text_.substr(at_, expected.size()) != expected) {
      return false;
    }
    const std::size_t after = at_ + expected.size();
    const char next = after < text_.size() ? text_[after] : ' ';
    if ((next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || (next >= '0' && next <= '9') ||
        next == '_') {
      return false;
    }
    at_ = after;
    return true;
  }

  // A plain string literal. Escapes are refused but for \\, \' and \": no key or dtype that is read has any.
  bool string(std::string* out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') {
      return expect('\'', "a string");
    }
    ++at_;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\n') {
        return fail("a line break inside a string");
      }
      if (c == '\\') {
        if (at_ == text_.size() || (text_[at_] != '\\' && text_[at_] != '\'' && text_[at_] != '"')) {
          return fail("an escape in a string that is not read here");
        }
        c = text_[at_++];
      }
      out->push_back(c);
    }
    if (at_ == text_.size()) {
      return fail("a string without its end");
    }
    ++at_;
    return true;
  }

  bool boolean(bool* out) {
    if (word("True")) {
      *out = true;
      return true;
    }
    if (word("False")) {
      *out = false;
      return true;
    }
    return fail("fortran_order must be True or False");
  }

  // A size: decimal, at least 0; a trailing L, as Python 2 wrote it, is let pass.
  bool size(std::int64_t* out) {
    const char first = peek();
    if (first == '-') {
      return fail("shape has a negative size");
    }
    if (first < '0' || first > '9') {
      return fail("shape must hold integers");
    }
    const std::size_t begin = at_;
    std::int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (__builtin_mul_overflow(value, std::int64_t{10}, &value) ||
          __builtin_add_overflow(value, std::int64_t{text_[at_] - '0'}, &value)) {
        return fail("shape has a size above 2^63 - 1");
      }
      ++at_;
    }
    if (text_[begin] == '0' && at_ - begin > 1) {
      return fail("shape has a size with a leading 0");
    }
    if (at_ < text_.size() && text_[at_] == 'L') {
      ++at_;
    }
    *out = value;
    return true;
  }

  bool shape(std::vector<std::int64_t>* out) {
    if (!take('(')) {
      return fail("shape must be a tuple, '(' expected");
    }
    while (!take(')')) {
      std::int64_t value = 0;
      if (!size(&value)) {
        return false;
      }
      if (out->size() == kMaxNpyRank) {
        return fail(fmt::format("shape has more than {} sizes", kMaxNpyRank));
      }
      out->push_back(value);
      if (!take(',')) {
        // "(3)" is a number in parentheses, not a tuple.
        return out->size() == 1 ? fail("shape must be a tuple: one size needs a ',' after it")
                                : expect(')', "',' or ')' in shape");
      }
    }
    return true;
  }

  bool descr(NpyHeader* out) {
    const char first = peek();
    if (first == '\'' || first == '"') {
      return string(&out->descr);
    }
    if (first != '[' && first != '(') {
      return fail("descr must be a string or a list");
    }
    const std::size_t begin = at_;
    if (!skip_value(0)) {
      return false;
    }
    out->structured = true;
    out->descr = text_.substr(begin, at_ - begin);
    return true;
  }

  // Steps over a nested value of a structured descr: strings, sizes, lists and tuples.
  bool skip_value(int depth) {
    if (depth > kMaxDepth) {
      return fail(fmt::format("descr nests deeper than {}", kMaxDepth));
    }
    const char first = peek();
    if (first == '[' || first == '(') {
      ++at_;
      const char close = first == '[' ? ']' : ')';
      while (!take(close)) {
        if (!skip_value(depth + 1)) {
          return false;
        }
        if (!take(',') && peek() != close) {
          return fail(fmt::format("',' or '{}' expected in descr", close));
        }
      }
      return true;
    }
    if (first >= '0' && first <= '9') {
      std::int64_t ignored = 0;
      return size(&ignored);
    }
    std::string ignored;
    return string(&ignored);
  }

  std::string_view text_;
  std::string* error_;
  std::size_t at_ = 0;
};

}  // namespace

bool parse_npy_header(std::string_view text, NpyHeader* header, std::string* error) {
  error->clear();
  *header = {};
  return Parser(text, error).header(header);
}

}  // namespace attn::io
