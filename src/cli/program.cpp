#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/process.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/recipe_call.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

// The command line that starts this program again, from any folder.
std::vector<std::string> own_command_line(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  command[0] = own_executable();
  return command;
}

// If a launcher has started every rank with the same mistake, the first rank of each host prints the full error. The
// others print one line each, since their error may be different.
int report_problems(const std::vector<Problem>& problems) {
  const Env env = process_env();
  const auto either = [&](const char* of_torchrun, const char* of_slurm) {
    const auto value = env(of_torchrun);
    return (value ? value : env(of_slurm)).value_or("0");
  };
  const std::string& what = problems.front().what;
  std::string text = ConfigError(problems).what();
  if (either("LOCAL_RANK", "SLURM_LOCALID") != "0")
    text = fmt::format("rank {}: {}{}", either("RANK", "SLURM_PROCID"), what.substr(0, what.find('\n')),
                       problems.size() > 1 ? fmt::format(" (and {} more)", problems.size() - 1) : "");
  fmt::print(stderr, "{}\n", error_text(visible_text(text), STDERR_FILENO));
  return 2;
}

int report(const std::exception& error, int exit_code) {
  std::fflush(stdout);  // an error may speak of the lines above it
  fmt::print(stderr, "{}\n", error_text(visible_text(error.what()), STDERR_FILENO));
  return exit_code;
}

void run(const Command& program, std::string (*version)(), Call& call) {
  if (version && call.command_line.size() > 1 && call.command_line[1] == "--version") {
    if (call.command_line.size() > 2)
      throw ConfigError({fmt::format("unexpected argument '{}'", call.command_line[2]), "command line",
                         "--version takes no arguments"});
    return fmt::print("{}\n", version());
  }
  const CommandPath path = find_command(program, call.command_line);
  const Command& command = *path.back();
  const bool before_dashes = command.extras == Extras::RecipeKeysOrCommand;
  std::vector<std::string> words(call.command_line.begin() + 1, call.command_line.end());
  if (before_dashes) words.erase(std::find(words.begin(), words.end(), "--"), words.end());
  if (command.extras != Extras::None) words = join_overrides(words);
  ParsedWords parsed = parse_words(path, std::move(words), columns_of(STDOUT_FILENO));
  if (!parsed.help.empty()) return fmt::print("{}", parsed.help);
  call.arguments = std::move(parsed.arguments);
  call.option_names = option_names(command);
  command.run(call);
}

int run_command(int argc, char** argv, const Command& program, std::string (*version)()) {
  Call call = {.arguments = {}, .command_line = own_command_line(argc, argv), .option_names = {}, .exit_code = 0};
  try {
    run(program, version, call);
  } catch (const ConfigError& e) {
    return report_problems(e.problems());
  } catch (const std::exception& e) {
    // A failed write of the output (fmt's error) is reported below.
    const bool of_output = std::ferror(stdout) && std::string_view(e.what()).starts_with("cannot write to file");
    return of_output ? std::max(call.exit_code, 1) : report(e, std::max(call.exit_code, 1));
  }
  return call.exit_code;
}

// A reader assumes that the output is complete, so a command fails if its output did not fit on the disk, but not if
// its reader is gone.
int checked_output(int exit_code) {
  errno = 0;
  if ((std::fflush(stdout) == 0 && !std::ferror(stdout)) || has_no_reader(STDOUT_FILENO)) return exit_code;
  fmt::print(stderr, "braid: standard output is incomplete{}\n  fix:   check the free space of its file system\n",
             errno ? fmt::format(": {}", std::strerror(errno)) : "");
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "braid: WARNING: {}\n", visible_text(warning));
}

void open_missing_streams() {
  int fd = 0;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  close(fd);
}

int run_program(int argc, char** argv, const Command& program, std::string (*version)()) {
  return checked_output(run_command(argc, argv, program, version));
}

}  // namespace braid
