// From a command that starts training on one node (torchrun, or a plain program) to what each rank, or each node's
// torchrun, runs. Independent of who starts them: Slurm, or Braid on one host. Only the words that belong to torchrun
// are replaced; everything else of a text stays as it was written.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct RankCommand {
  std::string text{};     // for bash
  std::string program{};  // "pretrain_gpt": what a job may be called after
  bool had_torchrun = false;
  bool has_pipe = false;                // bash shall run it with pipefail: else a run that crashed ends with tee's 0
  std::optional<int> ranks_per_node{};  // --nproc_per_node, where it is a number
  std::optional<int> nodes{};           // --nnodes, where it is one number
  std::vector<std::string> left_out{};  // torchrun's options that have no meaning without it: "--max-restarts=3"
  std::string uv_sync{};                // of `uv run`: the command that makes its environment, else empty
  std::string script{};                 // the python file, as far as it is known: "examples/pretrain_gpt.py"
};

// What the text would have each rank do: torchrun is taken out. The caller provides torchrun's variables (RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT); `environment` are the same as assignments, put
// in front of the program where the text itself sets one of them, as scripts made for one node do. Without torchrun,
// the program must be python or have a path: a name alone may be a function of the shell.
RankCommand rank_command(std::string_view text, std::string_view environment);

// The same program under one torchrun per node, which gets `options` instead of its own about the world.
RankCommand node_command(std::string_view text, std::string_view options);

// RankCommand::program of either; does not ask whether the command can be started.
std::string program_name(std::string_view text);

// In front of a text with a pipe. What the text itself sets wins.
inline constexpr const char* kPipesFail = "set -o pipefail  # what fails in front of a pipe has failed\n";

// The text of a command given as words: each quoted, but NAME=value in front is an assignment; or the word itself where
// there is only one and it has blanks, as ssh has it.
std::string command_text(const std::vector<std::string>& words);

// Whether the text sets one of torchrun's variables.
bool sets_rank_variables(std::string_view text);

}  // namespace braid
