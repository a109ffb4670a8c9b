#include "cli/program.h"

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/process.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/help_format.h"
#include "cli/misuse.h"
#include "comm/world_spec.h"

namespace {

// The command line that starts this program again, from any folder.
std::vector<std::string> own_command_line(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  command[0] = braid::own_executable();
  return command;
}

// If a launcher has started every rank with the same mistake, the first rank of each host prints the full error. The
// others print one line each, since their error may be different.
int report_problems(const std::vector<braid::Problem>& problems) {
  const braid::Env env = braid::process_env();
  const auto either = [&](const char* of_torchrun, const char* of_slurm) {
    const auto value = env(of_torchrun);
    return (value ? value : env(of_slurm)).value_or("0");
  };
  const std::string& what = problems.front().what;
  std::string text = braid::ConfigError(problems).what();
  if (either("LOCAL_RANK", "SLURM_LOCALID") != "0")
    text = fmt::format("rank {}: {}{}", either("RANK", "SLURM_PROCID"), what.substr(0, what.find('\n')),
                       problems.size() > 1 ? fmt::format(" (and {} more)", problems.size() - 1) : "");
  fmt::print(stderr, "{}\n", braid::error_text(braid::visible_text(text), STDERR_FILENO));
  return 2;
}

int report(const std::exception& error, int exit_code) {
  std::fflush(stdout);  // an error may speak of the lines above it
  fmt::print(stderr, "{}\n", braid::error_text(braid::visible_text(error.what()), STDERR_FILENO));
  return exit_code;
}

int run_command(int argc, char** argv, const braid::AddCommands& add_commands) {
  const std::vector<std::string> command_line = own_command_line(argc, argv);
  int exit_code = 0;
  CLI::App app("Braid trains multimodal language models, each module on its own grid of ranks.", "braid");
  app.formatter(std::make_shared<braid::HelpFormat>(braid::columns_of(STDOUT_FILENO)));
  app.require_subcommand(1);
  add_commands(app, command_line, exit_code);
  try {
    braid::refuse_empty_values(app);
    braid::refuse_unknown_subcommand(app, command_line);
    if (command_line.size() > 2 && command_line[1] == "--version")
      throw braid::ConfigError(
          {fmt::format("unexpected argument '{}'", command_line[2]), "command line", "--version takes no arguments"});
    std::vector<std::string> words = braid::join_overrides(command_line);
    if (braid::takes_foreign_command(words)) words.erase(std::find(words.begin(), words.end(), "--"), words.end());
    std::reverse(words.begin() + 1, words.end());  // CLI11 takes them from the back
    words.erase(words.begin());
    app.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return report_problems({braid::misuse_of(app, e)});
  } catch (const braid::ConfigError& e) {
    return report_problems(e.problems());
  } catch (const std::exception& e) {
    // A failed write of the output (fmt's error) is reported below.
    const bool of_output = std::ferror(stdout) && std::string_view(e.what()).starts_with("cannot write to file");
    return of_output ? std::max(exit_code, 1) : report(e, std::max(exit_code, 1));
  }
  return exit_code;
}

// A reader assumes that the output is complete, so a command fails if its output did not fit on the disk, but not if
// its reader is gone.
int checked_output(int exit_code) {
  errno = 0;
  std::cout.flush();
  const bool complete = std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout;
  if (complete || braid::has_no_reader(STDOUT_FILENO)) return exit_code;
  fmt::print(stderr, "braid: standard output is incomplete{}\n  fix:   check the free space of its file system\n",
             errno ? fmt::format(": {}", std::strerror(errno)) : "");
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace

namespace braid {

void open_missing_streams() {
  int fd = 0;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  close(fd);
}

int run_program(int argc, char** argv, const AddCommands& add_commands) {
  return checked_output(run_command(argc, argv, add_commands));
}

}  // namespace braid
