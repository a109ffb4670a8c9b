// From a command line to an exit code. Errors become one message here and nowhere else: 2 for misuse and bad recipes, 1
// for failures.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace braid {

// Adds the subcommands; the command line and the exit code outlive them.
using AddCommands = std::function<void(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code)>;

// Call it first. If the caller has closed standard input, output or error, opens /dev/null in its place; otherwise a
// socket could get that descriptor and receive what is printed.
void open_missing_streams();

int run_program(int argc, char** argv, const AddCommands& add_commands);

}  // namespace braid
