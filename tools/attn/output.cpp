// Tables, progress, colour, units: see output.hpp.
#include "output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "command.hpp"

namespace attn::tool {
namespace {

constexpr std::string_view kGap = "  ";

bool stdout_has_colour() {
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org: set and not empty
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

std::string padded(std::string_view cell, std::size_t width, Align align) {
  const std::size_t used = display_width(cell);
  const std::string space(width > used ? width - used : 0, ' ');
  return align == Align::kLeft ? std::string(cell) + space : space + std::string(cell);
}

void cut_trailing_spaces(std::string* text) {
  text->erase(text->find_last_not_of(' ') + 1);
}

volatile std::sig_atomic_t g_interrupted = 0;

extern "C" void on_interrupt(int) {
  g_interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Failure{kFile, fmt::format("cannot write to standard output: {}", std::strerror(errno))};
  }
}

std::string coloured(std::string_view text, Mood mood) {
  if (mood == Mood::kPlain || !stdout_has_colour()) {
    return std::string(text);
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", mood == Mood::kGood ? "32" : "1;31", text);
}

std::size_t display_width(std::string_view utf8) noexcept {
  std::size_t width = 0;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    if (utf8[i] == '\x1b') {  // a colour: up to its 'm'
      i = std::min(utf8.find('m', i), utf8.size());
    } else if ((static_cast<unsigned char>(utf8[i]) & 0xC0U) != 0x80U) {  // not a continuation byte
      ++width;
    }
  }
  return width;
}

std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (const std::string_view word : split(text, ' ')) {
    std::string& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (display_width(line) + 1 + display_width(word) <= width) {
      line += ' ';
      line += word;
    } else {
      lines.emplace_back(word);
    }
  }
  return lines;
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  std::size_t total = 0;
  std::size_t wrapping = columns_.size();
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) {
      width = std::max(width, display_width(row[c]));
    }
    widths.push_back(width);
    total += width + (c > 0 ? kGap.size() : 0);
    wrapping = columns_[c].wraps ? c : wrapping;
  }
  if (total > kMaxColumns && wrapping < columns_.size()) {
    constexpr std::size_t kNarrowest = 24;
    const std::size_t excess = total - kMaxColumns;
    widths[wrapping] = std::max(kNarrowest, widths[wrapping] - std::min(excess, widths[wrapping]));
  }

  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      line += c > 0 ? kGap : "";
      line += padded(cells[c], widths[c], columns_[c].align);
    }
    cut_trailing_spaces(&line);
    out += line + '\n';
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
  }
  add_line(titles);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (const auto& [before, title] : sections_) {
      out += before == r ? title + '\n' : "";
    }
    const std::vector<std::string>& row = rows_[r];
    std::vector<std::string> cells = row;
    std::vector<std::string> lines{""};
    if (wrapping < columns_.size()) {
      lines = wrap(row[wrapping], widths[wrapping]);
      cells[wrapping] = lines.front();
    }
    add_line(cells);
    for (std::size_t i = 1; i < lines.size(); ++i) {
      std::vector<std::string> more(columns_.size());
      more[wrapping] = lines[i];
      add_line(more);
    }
  }
  return out;
}

std::string Table::markdown() const {
  std::string out = "|";
  std::string rule = "|";
  for (const Column& column : columns_) {
    out += fmt::format(" {} |", column.title);
    rule += column.align == Align::kLeft ? "---|" : "---:|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : rows_) {
    out += "|";
    for (const std::string& cell : row) {
      out += fmt::format(" {} |", cell);
    }
    out += "\n";
  }
  return out;
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()), last_(start_) {}

void Progress::show(std::string_view text) {
  using std::chrono::milliseconds;
  const Clock::time_point now = Clock::now();
  if (!terminal_ || now - start_ < milliseconds(2000) || (visible_ && now - last_ < milliseconds(100))) {
    return;
  }
  last_ = now;
  visible_ = true;
  constexpr std::size_t kWidth = 79;  // one line on the narrowest usual terminal; cut at a character
  std::string line(text.substr(0, kWidth));
  while (line.size() < text.size() && !line.empty() &&
         (static_cast<unsigned char>(text[line.size()]) & 0xC0U) == 0x80U) {
    line.pop_back();
  }
  std::fputs(fmt::format("\r\x1b[K{}", line).c_str(), stderr);
  std::fflush(stderr);
}

void Progress::erase() {
  if (visible_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    visible_ = false;
  }
}

Ticker::Ticker(std::string what) {
  if (isatty(STDERR_FILENO) != 1) {
    return;
  }
  thread_ = std::thread([this, what = std::move(what)] {
    const auto start = std::chrono::steady_clock::now();
    Progress progress;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(200), [this] { return done_; })) {
      const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start);
      progress.show(fmt::format("{}: {:.0f} s", what, elapsed.count()));
    }
  });
}

Ticker::~Ticker() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
}

InterruptGuard::InterruptGuard() {
  g_interrupted = 0;
  std::signal(SIGINT, on_interrupt);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
}

bool InterruptGuard::interrupted() noexcept {
  return g_interrupted != 0;
}

std::string rate_text(double value) {
  if (!std::isfinite(value)) {
    return "–";
  }
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

std::string time_text(double seconds) {
  if (seconds >= 1) {
    return rate_text(seconds) + " s";
  }
  return seconds >= 1e-3 ? rate_text(seconds * 1e3) + " ms" : rate_text(seconds * 1e6) + " µs";
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    return fmt::format("{:.0f} B", bytes);
  }
  int unit = -1;
  while (bytes >= 1024 && unit < 3) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", rate_text(bytes), kUnits[unit]);
}

std::string error_text(double error) {
  return error == 0 ? "0" : fmt::format("{:.1e}", error);
}

std::string percent_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", share * 100) : "–";
}

}  // namespace attn::tool
