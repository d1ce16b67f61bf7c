// A small fuzzing main for any compiler with sanitizers, so that the tests need no clang: replays every seed,
// then mutates for a fixed time, keeping what reaches new code (-fsanitize=trace-pc calls back here). The
// random numbers are fixed, so a run repeats up to where the time ends it. Not a replacement for libFuzzer:
// README.md.
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.hpp"

// Inputs are a few KiB: whatever asks for more than this trusted a number in one.
// NOLINTNEXTLINE(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): AddressSanitizer's name
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=64:detect_leaks=1";
}

namespace {

using Input = std::string;

constexpr std::size_t kMaxInput = 4096;
constexpr unsigned kSecondsPerInput = 20;
constexpr std::size_t kMapSize = std::size_t{1} << 16;

std::array<std::uint8_t, kMapSize> g_reached{};  // code locations, hashed
std::size_t g_locations = 0;
const Input* g_current = nullptr;
std::string g_artifact = "fuzz-failure";

void keep_input() {
  if (g_current == nullptr) {
    return;
  }
  std::ofstream(g_artifact, std::ios::binary)
      .write(g_current->data(), static_cast<std::streamsize>(g_current->size()));
  std::fprintf(stderr, "fuzz: the input is in %s (%zu bytes); replay: give it as the only argument\n",
               g_artifact.c_str(), g_current->size());
}

// Not async-signal-safe, on purpose: the process is lost anyway, the input is not.
void on_abort(int) {
  keep_input();
}
void on_alarm(int) {
  std::fprintf(stderr, "fuzz: one input took over %u s\n", kSecondsPerInput);
  std::abort();
}

// True if the input reached code that none before it did.
bool execute(const Input& input) {
  const std::size_t before = g_locations;
  g_current = &input;
  ::alarm(kSecondsPerInput);
  // A copy of exactly this size, so that one byte too far is seen.
  const std::vector<std::uint8_t> exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  g_current = nullptr;
  return g_locations != before;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : state_(seed) {}
  std::vector<Input> dictionary;

  Input mutate(const std::vector<Input>& corpus) {
    Input input = corpus[below(corpus.size())];
    for (std::size_t rounds = 1 + below(4); rounds > 0; --rounds) {
      once(corpus, &input);
    }
    input.resize(std::min(input.size(), kMaxInput));
    return input;
  }

 private:
  std::uint64_t next() {  // SplitMix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : next() % n; }

  void once(const std::vector<Input>& corpus, Input* input) {
    static const std::vector<Input> numbers{
        "0",          "-1",    "1",  "18446744073709551615", "9223372036854775808", "4611686018427387904",
        "4294967296", "1e999", "0.5"};
    const std::size_t at = below(input->size() + 1);
    switch (below(9)) {
      case 0:
        if (at < input->size()) (*input)[at] = static_cast<char>((*input)[at] ^ 1 << below(8));
        break;
      case 1:
        if (at < input->size()) (*input)[at] = static_cast<char>(next());
        break;
      case 2:
        input->insert(at, 1, static_cast<char>(next()));
        break;
      case 3:
        input->erase(at, 1 + below(8));
        break;
      case 4: {  // a piece of another input, in place or in addition
        const Input& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size());
        const Input piece = other.substr(from, 1 + below(32));
        input->replace(at, below(2) * piece.size(), piece);
        break;
      }
      case 5:
        input->insert(at, input->substr(below(input->size()), 1 + below(64)));
        break;  // repeated
      case 6:
        input->resize(at);
        break;
      case 7: {  // another number instead of one
        const std::size_t digit = input->find_first_of("0123456789", at);
        if (digit != Input::npos) {
          const std::size_t end = std::min(input->find_first_not_of("0123456789", digit), input->size());
          const Input& number = numbers[below(numbers.size())];
          input->replace(digit, end - digit, below(3) == 0 ? std::to_string(below(300)) : number);
        }
        break;
      }
      default:
        if (!dictionary.empty()) input->insert(at, dictionary[below(dictionary.size())]);
        break;
    }
  }

  std::uint64_t state_;
};

Input read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// libFuzzer's form: a "token" a line, with \xNN, \\ and \" in it; # begins a comment.
std::vector<Input> read_dictionary(const std::filesystem::path& path) {
  std::vector<Input> tokens;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t open = line.find('"');
    const std::size_t close = line.rfind('"');
    if (line.starts_with('#') || open == close) {
      continue;
    }
    Input token;
    for (std::size_t i = open + 1; i < close; ++i) {
      if (line[i] == '\\' && line[i + 1] == 'x') {
        token += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        i += line[i] == '\\' ? 1 : 0;
        token += line[i];
      }
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::vector<Input> read_seeds(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      files.push_back(entry.path());
    }
  } else if (std::filesystem::exists(path)) {
    files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> seeds;
  std::transform(files.begin(), files.end(), std::back_inserter(seeds), read);
  return seeds;
}

}  // namespace

// Called at every edge of the instrumented code (this file is not).
// NOLINTNEXTLINE(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the compiler's name
extern "C" void __sanitizer_cov_trace_pc() {
  // Relative to this function, so that where the program was loaded does not matter.
  const auto here = reinterpret_cast<std::uintptr_t>(&__sanitizer_cov_trace_pc);
  const std::uint64_t pc = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) - here;
  std::uint8_t& seen = g_reached[pc * 0x9E3779B97F4A7C15ULL >> 48];
  g_locations += seen == 0 ? 1 : 0;
  seen = 1;
}

int main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t random_seed = 1;
  std::vector<Input> corpus;
  Mutator mutator(1);
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--seconds" && i + 1 < argc) {
      seconds = std::stod(argv[++i]);
    } else if (arg == "--seed" && i + 1 < argc) {
      random_seed = std::stoull(argv[++i]);
    } else if (arg == "--dict" && i + 1 < argc) {
      mutator.dictionary = read_dictionary(argv[++i]);
      if (mutator.dictionary.empty()) {
        std::fprintf(stderr, "fuzz: no dictionary in %s\n", argv[i]);
        return 2;
      }
    } else if (arg == "--artifact" && i + 1 < argc) {
      g_artifact = argv[++i];
    } else {
      const std::vector<Input> seeds = read_seeds(argv[i]);
      corpus.insert(corpus.end(), seeds.begin(), seeds.end());
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [--seconds S] [--seed N] [--dict FILE] [--artifact FILE] SEEDS...\n",
                 argv[0]);
    return 2;
  }
  __sanitizer_set_death_callback(keep_input);
  std::signal(SIGABRT, on_abort);
  std::signal(SIGALRM, on_alarm);

  const std::size_t seeds = corpus.size();
  for (const Input& seed : corpus) {
    execute(seed);
  }
  const std::size_t by_seeds = g_locations;
  Mutator running(random_seed);
  running.dictionary = mutator.dictionary;
  std::uint64_t runs = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const Input input = running.mutate(corpus);
    if (execute(input)) {
      corpus.push_back(input);
    }
    ++runs;
  }
  std::printf("fuzz: %zu seeds reach %zu code locations; %llu mutated inputs reach %zu\n", seeds, by_seeds,
              static_cast<unsigned long long>(runs), g_locations);
  return 0;
}
