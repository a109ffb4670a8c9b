// The commands of a program as data: their options, help and what they do.
#pragma once

#include "base/error.h"

namespace braid {

// The command line is wrong.
inline ConfigError misuse(std::string what, std::string fix) {
  return ConfigError({std::move(what), "command line", std::move(fix)});
}

// The variable that gets an option's value. A bool makes the option a flag, which takes no value.
using Target =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, std::vector<std::string>*,
                 std::optional<int>*, std::optional<std::int64_t>*, std::optional<std::string>*>;

enum class NumberSign { Positive, NonNegative };
struct WholeRange {
  std::int64_t least, most;
};
struct RealRange {  // without nan
  double least, most;
};
struct OneOf {
  std::vector<std::string> names;
};
using Check = std::variant<std::monostate, NumberSign, WholeRange, RealRange, OneOf>;

// The parser reads any number that is too large as the largest, which this range refuses.
inline constexpr std::int64_t kLargestSeed = INT64_MAX - 1;

struct Rules {
  Check check{};
  std::string value_name{};  // in help, e.g. FILE; empty: the name of the target's type
  std::string usage{};       // of a positional argument: replaces its name in help
  std::string excludes{};    // another option, which cannot be combined with this one
  int most = 0;              // values of a positional list; 0: any number
  char delimiter = '\0';     // splits a value into the values of a list
  bool required = false;
  bool shows_default = false;  // in help: the target's value before parsing
  bool one_each = false;       // a list takes one value each time the option is given
  bool hidden = false;         // from help
};

inline const Rules kRequired{.required = true}, kDefaultShown{.shows_default = true}, kOneEach{.one_each = true},
    kPositive{.check = NumberSign::Positive};

struct Option {
  std::string names;  // "-n,--ranks"; without dashes: a positional argument
  Target target;
  std::string help;
  Rules rules{};
};

// A call of a command.
struct Call {
  std::vector<std::string> arguments;     // those that no option takes: recipe keys
  std::vector<std::string> command_line;  // starts this program again, from any folder
  std::vector<std::string> option_names;  // "--log-dir", to suggest
  int exit_code = 0;                      // an exception makes it at least 1
};

enum class Extras { None, RecipeKeys, RecipeKeysOrCommand };  // the latter: of a user, after --

struct Command {
  std::string name, help;
  std::vector<Option> options{};
  std::vector<Command> subcommands{};  // one is required, if there are any
  Extras extras = Extras::None;
  bool positionals_last = false;
  std::string footer{};                        // before what help says about recipe keys
  std::function<std::string()> make_footer{};  // instead of a footer that is not there yet
  std::function<void(Call& call)> run{};
};

// Descriptions are wrapped. In a footer, each line is a paragraph; indented lines (commands to copy) stay unchanged.
std::string help_page(const Command& command, int columns);

// The text width of help for a terminal width: not too narrow for two columns, not too wide to read.
inline std::size_t help_width(int columns) { return static_cast<std::size_t>(std::clamp(columns, 60, 120)); }

// Prints each to stderr, as a line.
void print_warnings(const std::vector<std::string>& warnings);

// Call it first. If the caller has closed standard input, output or error, opens /dev/null in its place; otherwise a
// socket could get that descriptor and receive what is printed.
void open_missing_streams();

// From a command line to an exit code: 2 for misuse and bad recipes, 1 for failures, each with one message.
int run_program(int argc, char** argv, const Command& program, std::string (*version)() = nullptr);

// --- the commands of braid and of braid-tensors, each declared by the file that runs it

// braid: no libtorch.
Command compare_command();
Command data_command();
Command doctor_command();
Command launch_command();
Command model_command();
Command plan_command();
Command report_command();
Command trace_command();

// Their subcommands that are in other files.
Command data_bench_command();
Command data_inspect_command();
Command data_order_command();
Command data_pack_command();
Command launch_status_command();
Command launch_tail_command();
Command plan_search_command();
Command plan_simulate_command();

std::string called_as();  // "braid", or the path it was called by: for commands to copy

// braid-tensors. Loading libtorch takes a quarter of a second and 120 MB, so the commands that need it are in a
// separate program, which braid executes in its place when one of them is called.
Command ckpt_command();
Command forward_command();
Command launch_local_command();
Command plan_calibrate_command();
Command run_command();

// Their names and help, which braid lists without having them.
struct CommandName {
  const char* name;
  const char* help;
};
inline constexpr CommandName kRun = {"run", "Start N copies of a program on this host as the ranks of one world"};
inline constexpr CommandName kCkpt = {"ckpt", "Inspect, verify and convert checkpoints"};
inline constexpr CommandName kForward = {"forward", "Run a stored model once, in any layout, to compare its results"};
inline constexpr CommandName kLaunchLocal = {"local",
                                             "Start the ranks of a recipe or a command on this machine's GPUs"};
inline constexpr CommandName kPlanCalibrate = {"calibrate", "Measure the hardware profile of this machine"};

inline Command named(const CommandName& command) { return {.name = command.name, .help = command.help}; }

std::string version_text();  // of that program

}  // namespace braid
