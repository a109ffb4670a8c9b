// The sbatch script of a job, as text. A pure function: environment, files and recipes are passed as values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/slurm/options.h"

namespace braid {

struct SlurmJob {
  std::string title{};    // for the first line: "pretrain_gpt"
  std::string made_by{};  // the command line
  int nodes = 1, ranks_per_node = 1;
  std::string command{};                 // shell text: of a rank, or of the one torchrun of a node
  std::string zeroth_argument = "rank";  // $0 in the command
  std::vector<std::string> exports{};    // NAME=value, quoted for bash, besides those of the options
  std::string prelude{};                 // shell text before the command, on every rank
  std::string first_phase{};             // shell text that one task runs before all others; may be empty
  std::string repeated{};                // the lines of first_phase that every rank runs again
  bool is_braid = false;                 // Braid reads Slurm's variables itself
  bool had_torchrun = false;
  bool sets_rank_variables = false;  // the text has RANK=... in it: see rank_environment()
  bool can_stop = false;             // ends cleanly on the stop signal
  std::vector<std::string> notes{};  // sentences for the reader
};

// The arguments of rank_command() and node_command() for a Slurm job. If the text sets torchrun's variables for one
// node, the correct ones are in BRAID_MASTER_ADDR and BRAID_MASTER_PORT.
std::string rank_environment(int ranks_per_node);
std::string torchrun_world(int ranks_per_node, bool sets_rank_variables);

// A job from any command that runs on one node. ConfigError if it cannot be started on several.
SlurmJob job_of_command(const SlurmOptions& options, const std::string& text);

std::string slurm_script(const SlurmOptions& options, const SlurmJob& job);

inline constexpr std::string_view kSlurmScriptMark = "# A Slurm script made by `braid launch slurm`.";

// <log-dir>/<job name>_: the job's number and .log follow, or .jsonl for its metrics.
std::string log_stem(const SlurmOptions& options);

struct CacheVariable {
  std::string_view name, folder;  // the folder is inside --cache-dir
};
inline constexpr CacheVariable kCacheVariables[] = {
    {"HF_HOME", "huggingface"}, {"UV_CACHE_DIR", "uv"}, {"NEMO_HOME", "nemo"}};

// The caches (for Braid itself, only Hugging Face's) and --env. NAME=value, quoted for bash: ready for `export`.
std::vector<std::string> exports_of_options(const SlurmOptions& options, bool is_braid);

std::vector<std::string> exports_for_gpus();  // the usual settings for training on NVIDIA GPUs

std::vector<std::string> container_options(const SlurmOptions& options);  // none without a container
std::vector<std::string> mpi_option(const SlurmOptions& options);         // one or none

// salloc, srun for a shell on the nodes (in the container), and what to type there first; each with a comment. Relative
// paths start at options.workdir.
std::string interactive_commands(const SlurmOptions& given);

}  // namespace braid
