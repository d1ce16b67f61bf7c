// See cgroup.hpp.
#include "cpu/cgroup.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace attn::cpu {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return std::nullopt;
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The next word of text, which is shortened by it; empty at the end.
std::string_view next_word(std::string_view* text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = std::min(text->find_first_not_of(kSpace), text->size());
  const std::size_t end = std::min(text->find_first_of(kSpace, begin), text->size());
  const std::string_view word = text->substr(begin, end - begin);
  text->remove_prefix(end);
  return word;
}

std::optional<std::int64_t> parse_positive(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value <= 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> ratio(std::string_view quota, std::string_view period) {
  const std::optional<std::int64_t> q = parse_positive(quota);
  const std::optional<std::int64_t> p = parse_positive(period);
  if (!q.has_value() || !p.has_value()) {
    return std::nullopt;
  }
  return static_cast<double>(*q) / static_cast<double>(*p);
}

void tighten(const std::optional<double>& limit, std::optional<double>* tightest) {
  if (limit.has_value() && (!tightest->has_value() || *limit < **tightest)) {
    *tightest = limit;
  }
}

// Calls limit_in(directory) for mount + path and each parent of it down to mount itself. A container often
// sees a path of its host here that does not exist inside; its own files then lie at the mount.
template <class Function>
void walk_up(const std::string& mount, std::string path, const Function& limit_in) {
  while (true) {
    limit_in(mount + (path == "/" ? "" : path));
    const std::size_t slash = path.rfind('/');
    if (path.empty() || path == "/" || slash == std::string::npos) {
      return;
    }
    path.resize(slash);
  }
}

bool lists_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") {
      return true;
    }
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

std::optional<double> parse_cpu_max(std::string_view text) {
  const std::string_view quota = next_word(&text);
  return ratio(quota, next_word(&text));
}

std::optional<double> parse_cfs_quota(std::string_view quota, std::string_view period) {
  return ratio(next_word(&quota), next_word(&period));
}

std::optional<double> cpu_quota(const std::string& root, std::string_view proc_cgroup) {
  std::optional<double> tightest;
  while (!proc_cgroup.empty()) {  // lines "id:controllers:path"; cgroup v2 has id 0 and no controllers
    const std::size_t end = std::min(proc_cgroup.find('\n'), proc_cgroup.size());
    const std::string_view line = proc_cgroup.substr(0, end);
    proc_cgroup.remove_prefix(std::min(end + 1, proc_cgroup.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) {
      continue;
    }
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) {
      for (const char* mount : {"", "/unified"}) {
        walk_up(root + mount, path, [&](const std::string& directory) {
          tighten(parse_cpu_max(read_file(directory + "/cpu.max").value_or("")), &tightest);
        });
      }
    } else if (lists_cpu(controllers)) {
      for (const std::string& mount : {std::string("/cpu"), "/" + std::string(controllers)}) {
        walk_up(root + mount, path, [&](const std::string& directory) {
          tighten(parse_cfs_quota(read_file(directory + "/cpu.cfs_quota_us").value_or(""),
                                  read_file(directory + "/cpu.cfs_period_us").value_or("")),
                  &tightest);
        });
      }
    }
  }
  return tightest;
}

std::optional<double> cpu_quota() {
  return cpu_quota("/sys/fs/cgroup", read_file("/proc/self/cgroup").value_or(""));
}

}  // namespace attn::cpu
