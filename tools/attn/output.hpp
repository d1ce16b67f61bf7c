// What goes to the terminal: checked writes to stdout, aligned tables of at most 120 columns, colour and
// progress lines only where a person looks. Tested in tests/cli.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace attn::tool {

inline constexpr std::size_t kMaxColumns = 120;

// Writes to stdout; a failing write throws Failure at the latest in flush_output.
void print(std::string_view text);
void flush_output();

// Green or red on a terminal (unless NO_COLOR is set), plain elsewhere.
enum class Mood { kGood, kBad, kPlain };
[[nodiscard]] std::string coloured(std::string_view text, Mood mood);

[[nodiscard]] std::size_t display_width(std::string_view utf8) noexcept;  // ANSI colours count nothing

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
  bool wraps = false;  // at spaces, over several lines, where the table would be wider than kMaxColumns
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many cells as columns; missing ones are empty.
  void add(std::vector<std::string> cells);
  // A line of its own before the rows that follow.
  void section(std::string title) { sections_.emplace_back(rows_.size(), std::move(title)); }
  // Every line ends with a newline; trailing spaces are cut.
  [[nodiscard]] std::string text() const;
  // The same as a GitHub markdown table.
  [[nodiscard]] std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::pair<std::size_t, std::string>> sections_;  // before which row
};

// Words wrapped at spaces to lines of at most `width` columns; a longer word has a line of its own.
[[nodiscard]] std::vector<std::string> wrap(std::string_view text, std::size_t width);

// One line on stderr that says how far the work is; only where stderr is a terminal, only after two seconds,
// and erased when the object goes.
class Progress {
 public:
  Progress();
  ~Progress() { erase(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::string_view text);
  void erase();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool visible_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

// Says every 0.2 s, on a thread of its own, that one long step still runs; only where stderr is a terminal.
class Ticker {
 public:
  explicit Ticker(std::string what);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

// While one lives, SIGINT (Ctrl-C) only sets a flag, so that a long loop can end with its summary; a second
// one ends the process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  [[nodiscard]] static bool interrupted() noexcept;
};

// "1.23 ms", "45.6 µs"; "640 B", "12.5 MiB"; a few significant digits.
[[nodiscard]] std::string time_text(double seconds);
[[nodiscard]] std::string bytes_text(double bytes);
[[nodiscard]] std::string error_text(double error);    // "1.2e-07", "0"
[[nodiscard]] std::string percent_text(double share);  // 0.453 → "45.3 %"
[[nodiscard]] std::string rate_text(double value);     // three significant digits without an exponent

}  // namespace attn::tool
