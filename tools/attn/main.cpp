// The command attn: parses the command line and runs one subcommand. Every error ends here, as one line on
// stderr and a documented exit code. Tested in tests/cli.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <attn/version.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "command.hpp"
#include "output.hpp"

namespace attn::tool {
namespace {

std::string g_command_line = "attn";  // set once by main

constexpr const char* kFooter =
    "Exit codes:\n"
    "  0  done, and every check passed\n"
    "  1  a check failed: results are wrong or do not agree\n"
    "  2  bad usage, or an input whose content is not valid\n"
    "  3  not supported by any backend, or the backend asked for is not usable here\n"
    "  4  a file is missing, unreadable, malformed or cannot be written\n"
    "  5  out of memory, a failing driver, or a defect of attn\n"
    "  130  interrupted before all was done\n"
    "\n"
    "A problem is one line, such as \"b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=br\"; "
    "docs/problem-string.md\n"
    "has every token. `attn SUBCOMMAND --help` shows options and examples.";

struct Entry {
  const char* name;
  const char* help;
  Action (*add)(Options&);
};

constexpr Entry kEntries[] = {
    {"run", "Compute attention on Q, K, V from files", add_run},
    {"verify", "Compare a backend with the float64 reference on seeded inputs", add_verify},
    {"bench", "Measure the speed of problems", add_bench},
    {"tune", "Measure the kernels that compute a problem, and keep the best", add_tune},
    {"explain", "Say which kernel would run a problem, and why", add_explain},
    {"list", "List backends, SIMD levels, kernels and what they support", add_list},
    {"selftest", "Run a few hundred conformance cases on this machine", add_selftest},
    {"demo", "Compute a real model's attention from a sample file and check it", add_demo},
};

std::string subcommand_names() {
  std::string names;
  for (const Entry& entry : kEntries) {
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  return names;
}

std::string quoted(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

int report(const std::string& who, const Failure& failure) {
  // What was printed before the failure goes out first, so that the two streams read in order.
  std::fflush(stdout);
  std::fputs(fmt::format("{}: {}\n", who, failure.message).c_str(), stderr);
  return failure.code;
}

int run_command(int argc, char** argv) {
  CLI::App app{"Exact fused attention, softmax(scale · Q·Kᵀ)·V, on any machine."};
  app.name("attn");
  app.set_version_flag("-V,--version", fmt::format("attn {}", version()));
  app.footer(kFooter);
  app.require_subcommand(1);
  app.get_formatter()->column_width(32);
  std::vector<std::pair<CLI::App*, Action>> commands;
  for (const Entry& entry : kEntries) {
    CLI::App* sub = app.add_subcommand(entry.name, entry.help);
    Options options(sub);
    commands.emplace_back(sub, entry.add(options));
  }

  std::string who = "attn";
  const auto name_subcommand = [&] {
    for (const auto& [sub, action] : commands) {
      if (sub->count() > 0) {
        who = "attn " + sub->get_name();
      }
    }
  };
  try {
    app.parse(argc, argv);
    name_subcommand();
    for (const auto& [sub, action] : commands) {
      if (sub->parsed()) {
        const int code = action();
        flush_output();
        return code;
      }
    }
    return kInternal;  // require_subcommand(1) leaves no way here
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      flush_output();
      return kSuccess;
    }
    name_subcommand();
    if (who == "attn" && argc > 1) {
      return report(who, {kUsage, fmt::format("'{}' is neither a subcommand ({}) nor an option of attn",
                                              argv[1], subcommand_names())});
    }
    return report(who, {kUsage, fmt::format("{} (see {} --help)", error.what(), who)});
  } catch (const Failure& failure) {
    name_subcommand();
    return report(who, failure);
  } catch (const std::bad_alloc&) {
    name_subcommand();
    return report(who, {kInternal, "out of memory"});
  } catch (const std::exception& error) {
    name_subcommand();
    return report(who, {kInternal, fmt::format("internal error: {}", error.what())});
  }
}

}  // namespace

const std::string& command_line() {
  return g_command_line;
}

}  // namespace attn::tool

int main(int argc, char** argv) {
  // A reader that closes the pipe ends the command quietly, whatever the parent process had set.
  std::signal(SIGPIPE, SIG_DFL);
  // Beyond a file size limit a write fails with EFBIG and is reported, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  for (int i = 1; i < argc; ++i) {
    attn::tool::g_command_line += ' ';
    attn::tool::g_command_line += attn::tool::quoted(argv[i]);
  }
  try {
    return attn::tool::run_command(argc, argv);
  } catch (const attn::tool::Failure& failure) {  // of the last flush
    return attn::tool::report("attn", failure);
  } catch (const std::exception& error) {
    return attn::tool::report("attn", {attn::tool::kInternal, error.what()});
  }
}
