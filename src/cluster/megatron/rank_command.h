// Turns a command that starts training on one node (torchrun, or a plain program) into the command of each rank, or of
// each node's torchrun. Independent of the launcher: Slurm, or Braid on one host. Only torchrun's words are replaced;
// the rest of the text stays as written.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct RankCommand {
  std::string text{};     // for bash
  std::string program{};  // "pretrain_gpt", for the job's name
  bool had_torchrun = false;
  bool has_pipe = false;                // bash must run it with pipefail: otherwise a crashed run ends with tee's 0
  std::optional<int> ranks_per_node{};  // --nproc_per_node, if it is a number
  std::optional<int> nodes{};           // --nnodes, if it is one number
  std::vector<std::string> left_out{};  // torchrun's options that have no meaning without it: "--max-restarts=3"
  std::string uv_sync{};                // for `uv run`: the command that creates its environment
  std::string script{};                 // the python file, if known: "examples/pretrain_gpt.py"
};

// The command of each rank: the text without torchrun. The caller provides torchrun's variables (RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). `environment` has the same as assignments, which are put in
// front of the program if the text itself sets one of them, as scripts for one node do. Without torchrun, the program
// must be python or have a path: a bare name may be a shell function.
RankCommand rank_command(std::string_view text, std::string_view environment);

// The same program under one torchrun per node, with `options` in place of its own world options.
RankCommand node_command(std::string_view text, std::string_view options);

// RankCommand::program of either; does not check whether the command can be started.
std::string program_name(std::string_view text);

// Goes before a text with a pipe. The text's own `set` takes precedence.
inline constexpr const char* kPipesFail = "set -o pipefail  # a failure before a pipe is a failure\n";

// The text of a command given as words: each is quoted, but leading NAME=value words are assignments. A single word
// with blanks is itself the text, as for ssh.
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
