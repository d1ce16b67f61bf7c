// What the subcommands of `attn` share: exit codes, the failure that carries one, and the entry of each
// subcommand. A subcommand registers its options and returns what runs once they are parsed.
// Tested in tests/cli.
#pragma once

#include <attn/status.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "args.hpp"

namespace attn::tool {

// docs/command.md and `attn --help` list them; tests/cli holds every subcommand to them.
enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,    // a comparison failed: the results are wrong or do not agree
  kUsage = 2,          // the command line or an input's content is not valid
  kUnsupported = 3,    // valid, but no backend can do it, or the one asked for is not usable here
  kFile = 4,           // a file is missing, unreadable, malformed or cannot be written
  kInternal = 5,       // out of memory, a failing driver, a defect
  kInterrupted = 130,  // Ctrl-C ended the work before all of it was done
};

// Ends the subcommand: main prints the message on stderr and exits with the code.
struct Failure {
  ExitCode code;
  std::string message;
};

[[nodiscard]] ExitCode exit_code(StatusCode code) noexcept;
// Throws the Failure of a status that is not ok; `context` is put before the message.
void check(const Status& status, std::string_view context = {});
[[noreturn]] void fail_usage(std::string message);

using Action = std::function<int()>;

Action add_run(Options& options);
Action add_verify(Options& options);
Action add_bench(Options& options);
Action add_tune(Options& options);
Action add_explain(Options& options);
Action add_list(Options& options);
Action add_selftest(Options& options);
Action add_demo(Options& options);

// The words of the command line, for the "command" field of results.
[[nodiscard]] const std::string& command_line();

}  // namespace attn::tool
