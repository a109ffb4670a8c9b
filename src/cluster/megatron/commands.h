// Commands that start training on one node, as text for bash: quoting, the simple commands of a text (nothing is run or
// expanded), what a script starts when it is run with stand-ins for python, torchrun, srun and similar programs, and
// the command of each rank or of each node's torchrun. Only torchrun's words are replaced; the rest stays as written.
#pragma once

namespace braid {

struct ShellWord {
  std::size_t begin = 0, end = 0;      // in the text
  std::string raw{};                   // as written
  std::optional<std::string> value{};  // without its quotes; empty if the shell expands something in it
  std::string text{};                  // without its quotes, its expansions as written
  // For a word with expansions, "--nproc_per_node=$GPUS" or "$VENV/bin/torchrun": the literal text before the first one
  // and after the last one. For other words, the value.
  std::string head{}, tail{};
};

// One program with its arguments, or only assignments. Redirections are not words.
struct ShellCommand {
  std::string excerpt{};                 // its beginning, for messages
  std::vector<ShellWord> assignments{};  // leading NAME=value
  std::vector<ShellWord> words{};
  std::vector<ShellWord> outputs{};  // redirection targets; those of a group belong to its last command
  bool reads_pipe = false;
  bool in_background = false;
  // In the text, redirections included. A statement is all that ends at the same ; & or line end outside of every
  // group, branch and loop; `nested` commands are in one of those.
  std::size_t begin = 0, end = 0, statement_begin = 0, statement_end = 0;
  bool nested = false;
};
using ShellCommands = std::vector<ShellCommand>;

bool is_identifier(std::string_view name);  // a valid variable name

// The word quoted for bash, only if necessary.
std::string shell_quoted(std::string_view word);
std::string joined_quoted(const std::vector<std::string>& words);

// The simple commands of a text in the order written, also those in groups, subshells, branches and loops, but not
// those in $(...), `...` or here-documents. Words that begin a construct (`for x in 1 2`) count as commands, too.
// ConfigError for unclosed quotes and brackets.
ShellCommands simple_commands(std::string_view text);

// The last component of a path if it is known, also for "$VENV/bin/python".
std::string base_name(const ShellWord& word);

// The words of one command, or of lines that hold only flags. ConfigError, which names `flag` and recommends
// --run-script, if the text is more than that, or a shell would expand a word. Patterns without a folder (M-M*) stay.
std::vector<std::string> plain_words(std::string_view text, const char* flag);

// A user's file with shell text; "-" is standard input. ConfigError, which names `flag`, if it is not text.
std::string read_shell_file(const std::string& path, const char* flag);

inline constexpr const char* kRunScript = "--run-script";
inline constexpr const char* kRunScriptHelp =
    "a script, with its arguments in the same quoted word: bash runs it HERE, with all its commands, except that "
    "python, "
    "torchrun, srun, sbatch and similar programs only record how they are called";

struct RecordedCall {
  std::vector<std::string> words{};                  // the program's name and its arguments
  std::string folder{};                              // in which it was called
  std::map<std::string, std::string> environment{};  // variables that the script has set or changed
};

struct ScriptRun {
  std::string path, text;           // of the script
  std::vector<RecordedCall> calls;  // in the order of the calls; at least one
};

// A path, or a path and arguments as shell words. ConfigError if it fails or calls none of the programs.
ScriptRun run_script(const std::string& script, std::chrono::seconds limit = std::chrono::seconds(60));

// Shell text for the same call in the same folder and environment. ConfigError if the script starts several programs.
std::string started_command(const ScriptRun& run);

struct RankCommand {
  std::string text{};     // for bash
  std::string program{};  // "pretrain_gpt", for the job's name
  bool had_torchrun = false;
  bool has_pipe = false;                // bash must run it with pipefail: otherwise a crashed run ends with tee's 0
  std::optional<int> ranks_per_node{};  // --nproc_per_node, if it is a number
  std::optional<int> nodes{};           // --nnodes, if it is one number
  std::vector<std::string> left_out{};  // torchrun's options that have no meaning without it: "--max-restarts=3"
  std::string script{};                 // the python file, if known: "examples/pretrain_gpt.py"
};

// The command of each rank: the text without torchrun. The caller provides torchrun's variables (RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). `environment` has the same as assignments, which are put in
// front of the program if the text itself sets one of them, as scripts for one node do. Without torchrun, the program
// must be python or have a path: a bare name may be a shell function.
RankCommand rank_command(std::string_view text, std::string_view environment);

// The same program under one torchrun per node, with `options` in place of its own world options.
RankCommand node_command(std::string_view text, std::string_view options);

// A text in two parts: what must happen once, before any rank starts, and what each rank runs. The first is the text up
// to the last such command (rm -r, wandb login, uv sync), then the `uv sync` that its `uv run` implies; the word
// `once`, a function of the caller, precedes each of them. In the second, `true` replaces them, and `uv run` becomes
// `uv run --no-sync`. ConfigError if a command cannot be moved.
struct Phases {
  std::string once{};  // empty: nothing
  std::string each{};
};
Phases phases_of(std::string_view text);

// Goes before Phases::once. The text's own commands may fail, as on the ranks; those that must happen end it.
inline constexpr const char* kOnce = "set +e\nonce() { \"$@\" || exit; }  # what must happen once\n";

// The second part of a text that only prepares; empty if nothing is left.
std::string without_once(std::string_view text);

// RankCommand::program of either; does not check whether the command can be started.
std::string program_name(std::string_view text);

// Goes before a text with a pipe. The text's own `set` takes precedence.
inline constexpr const char* kPipesFail = "set -o pipefail  # a failure before a pipe is a failure\n";

// The text of a command given as words; leading NAME=value are assignments. One word with blanks is itself the text.
std::string command_text(const std::vector<std::string>& words);

// An option of torchrun: enough to find where the options end and the program begins.
struct TorchrunOption {
  enum Kind {
    World,    // number of ranks and rendezvous: the launcher sets these
    Program,  // how the program is run: -m, --no-python
    Own,      // torchrun's other features: restarts, log files
  };
  std::string_view name;  // with dashes; underscores are the same
  bool takes_value;
  Kind kind;
  char letter = '\0';  // -m
};
const TorchrunOption* exact_torchrun_option(std::string_view name);  // full name only, with - or _; null: none

bool calls_torchrun(std::string_view text);  // true even if the call cannot be parsed

// Whether the text sets one of torchrun's variables.
bool sets_rank_variables(std::string_view text);

// The files, as written, that all ranks would write the program's output to, by `| tee FILE` or `>FILE`.
std::vector<std::string> shared_outputs(std::string_view text);

}  // namespace braid
