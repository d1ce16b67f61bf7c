// See tune_file.hpp. A strict reader of JSON that keeps nothing but what it was asked for.
#include "core/tune_file.hpp"

#include <algorithm>
#include <attn/version.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/env.hpp"
#include "core/refusal.hpp"

namespace attn::core {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;  // some thousand choices
constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxText = 1024;  // of a name or a problem

// Recursive descent over RFC 8259. The first error stays, and every function is harmless after it.
class Json {
 public:
  explicit Json(std::string_view text) : text_(text) {}

  [[nodiscard]] bool ok() const { return error_.empty(); }
  [[nodiscard]] const std::string& error() const { return error_; }
  void fail(const std::string& what) {
    if (ok()) {
      const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
      error_ = "line " + std::to_string(line) + ": " + what;
    }
  }

  // The members of an object: `member` is called behind each name and reads the value.
  void object(const std::function<void(const std::string& name)>& member) {
    list('{', '}', [&] {
      const std::string name = string();
      expect(':');
      if (ok()) {
        member(name);
      }
    });
  }
  void array(const std::function<void()>& element) { list('[', ']', element); }

  std::string string() {
    std::string value;
    expect('"');
    while (ok()) {
      if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20) {
        fail("a string does not end");
      } else if (text_[at_] == '"') {
        ++at_;
        return value;
      } else if (text_[at_] == '\\') {
        ++at_;
        value += escape();
      } else {
        value += text_[at_++];
      }
    }
    return {};
  }

  void skip() {
    space();
    const char c = peek();
    if (c == '{') {
      object([this](const std::string&) { skip(); });
    } else if (c == '[') {
      array([this] { skip(); });
    } else if (c == '"') {
      (void)string();
    } else {
      (void)word();
    }
  }

  // A number or a word: what stands up to the next punctuation, checked to be one.
  std::string word() {
    space();
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(",]} \t\r\n").find(text_[at_]) == std::string_view::npos) {
      ++at_;
    }
    std::string value(text_.substr(begin, at_ - begin));
    if (value != "true" && value != "false" && value != "null" && !is_number(value)) {
      at_ = begin;
      fail("a value is missing or not JSON");
    }
    return value;
  }

  void end() {
    space();
    if (at_ != text_.size()) {
      fail("text behind the end");
    }
  }

 private:
  static bool is_number(std::string_view s) {
    const auto digits = [&s] {
      std::size_t n = 0;
      while (n < s.size() && s[n] >= '0' && s[n] <= '9') {
        ++n;
      }
      s.remove_prefix(n);
      return n;
    };
    const auto take = [&s](std::string_view any) {
      const bool found = !s.empty() && any.find(s[0]) != std::string_view::npos;
      s.remove_prefix(found ? 1 : 0);
      return found;
    };
    take("-");
    const bool zero = !s.empty() && s[0] == '0';
    const std::size_t whole = digits();
    if (whole == 0 || (zero && whole > 1) || (take(".") && digits() == 0)) {
      return false;
    }
    if (take("eE")) {
      take("+-");
      if (digits() == 0) {
        return false;
      }
    }
    return s.empty();
  }

  void space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char c) {
    space();
    if (peek() != c) {
      fail(std::string("'") + c + "' is missing");
    } else {
      ++at_;
    }
  }

  void list(char open, char close, const std::function<void()>& element) {
    expect(open);
    if (++depth_ > kMaxDepth) {
      fail("nested too deeply");
    }
    space();
    if (ok() && peek() == close) {
      ++at_;
    } else {
      while (ok()) {
        element();
        space();
        if (ok() && peek() == close) {
          ++at_;
          break;
        }
        expect(',');
      }
    }
    --depth_;
  }

  // Behind the backslash. \u only up to U+007F: what is written here needs no more.
  char escape() {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char c = peek();
    const std::size_t named = c == '\0' ? std::string_view::npos : kNames.find(c);
    if (named != std::string_view::npos) {
      ++at_;
      return kValues[named];
    }
    unsigned value = 0x80;
    if (c == 'u' && text_.size() - at_ > 4) {
      value = 0;
      for (std::size_t i = 1; i <= 4; ++i) {
        constexpr std::string_view kHex = "0123456789abcdef0123456789ABCDEF";
        const std::size_t digit = kHex.find(text_[at_ + i]);
        value = value * 16 + (digit == std::string_view::npos ? 0x10000U : static_cast<unsigned>(digit % 16));
      }
      at_ += 5;
    }
    if (value >= 0x80) {
      fail("an escape that is not one, or not of ASCII");
      return '\0';
    }
    return static_cast<char>(value);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string error_;
};

// One choice; each of its four members once.
TunedChoice read_choice(Json* json) {
  TunedChoice choice;
  std::string problem;
  json->object([&](const std::string& name) {
    const std::pair<std::string_view, std::string*> members[] = {{"device", &choice.device},
                                                                 {"library", &choice.library},
                                                                 {"problem", &problem},
                                                                 {"kernel", &choice.kernel}};
    for (const auto& [wanted, target] : members) {
      if (name == wanted) {
        if (!target->empty()) {
          json->fail(name + " stands twice in a choice");
        }
        *target = json->string();
        if (json->ok() && (target->empty() || target->size() > kMaxText)) {
          json->fail(name + " is empty or longer than " + std::to_string(kMaxText) + " characters");
        }
        return;
      }
    }
    json->skip();
  });
  if (json->ok() &&
      (choice.device.empty() || choice.library.empty() || choice.kernel.empty() || problem.empty())) {
    json->fail("a choice lacks device, library, problem or kernel");
  }
  if (json->ok()) {
    Status status = parse(problem, &choice.problem);
    if (status.ok()) {
      status = validate(choice.problem);
    }
    if (!status.ok()) {
      json->fail("problem: " + status.message());
    }
  }
  return choice;
}

Status with_place(const std::string& path, const std::string& message) {
  return {StatusCode::kInvalidArgument, "ATTN_TUNE_FILE is " + path + ": " + message};
}

}  // namespace

Status parse_tune_file(std::string_view text, std::vector<TunedChoice>* choices) {
  Json json(text);
  std::vector<TunedChoice> found;
  bool has_schema = false;
  bool has_what = false;
  bool has_choices = false;
  json.object([&](const std::string& name) {
    if (name == "schema") {
      has_schema = true;
      if (const std::string value = json.word(); value != "1") {
        json.fail("schema is " + value.substr(0, 16) + ", not 1");
      }
    } else if (name == "what") {
      has_what = true;
      if (json.string() != "attn-tune") {
        json.fail("what is not \"attn-tune\"");
      }
    } else if (name == "choices") {
      if (has_choices) {
        json.fail("choices stands twice");
      }
      has_choices = true;
      json.array([&] { found.push_back(read_choice(&json)); });
    } else {
      json.skip();
    }
  });
  json.end();
  if (!has_schema || !has_what || !has_choices) {
    json.fail("schema, what or choices is missing");
  }
  if (!json.ok()) {
    return {StatusCode::kInvalidArgument, json.error()};
  }
  *choices = std::move(found);
  return {};
}

Status read_tune_file(const std::string& path, std::vector<TunedChoice>* choices) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {  // a pipe or a device may never end
    return {StatusCode::kInvalidArgument, error ? error.message() : "it is not a regular file"};
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (!file.is_open() || file.bad() || (text.empty() && !file.eof())) {
    return {StatusCode::kInvalidArgument, "it cannot be read"};
  }
  if (text.size() > kMaxBytes) {
    return {StatusCode::kInvalidArgument, "it is larger than " + std::to_string(kMaxBytes) + " bytes"};
  }
  return parse_tune_file(text, choices);
}

Status tuned_kernel(const BackendEntry& entry, const Problem& problem, PlanOptions* options,
                    std::string* note) {
  const std::string path = read_env(Env::kTuneFile).value_or("");
  if (path.empty() || !options->kernel.empty() || entry.candidates == nullptr) {
    return {};
  }
  std::vector<TunedChoice> choices;
  if (const Status status = read_tune_file(path, &choices); !status.ok()) {
    return with_place(path, status.message() + "; allowed: a file that `attn tune --store` wrote");
  }
  const std::vector<std::string> candidates = entry.candidates(problem, *options);
  if (candidates.size() < 2) {
    return {};  // the caller's other options leave nothing to choose
  }
  const std::string device = entry.device_name(*options);
  const auto it = std::find_if(choices.begin(), choices.end(), [&](const TunedChoice& c) {
    return c.device == device && c.library == version() && c.problem == problem;
  });
  if (it == choices.end()) {
    *note = "tuned: no choice for this problem, device and version in " + path;
    return {};
  }
  if (std::find(candidates.begin(), candidates.end(), it->kernel) == candidates.end()) {
    std::string names;
    for (const std::string& name : candidates) {
      names += (names.empty() ? "" : ", ") + name;
    }
    return with_place(path, invalid("kernel of " + to_string(problem), it->kernel, names).message());
  }
  options->kernel = it->kernel;
  *note = "tuned: by " + path;
  return {};
}

}  // namespace attn::core
