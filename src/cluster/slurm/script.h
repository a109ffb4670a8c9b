// The options of `braid launch slurm`, and the sbatch script of a job, as text.
#pragma once

#include "base/error.h"

namespace braid {

// What a command does: how much of a GPU with 80 GB its weights may take. The rest is for gradients, optimizer and
// activations, for caches of keys and values, or for one weight in two formats.
struct Task {
  std::string_view name, noun;
  double weights_gb;
  std::string_view words;  // a program does it if its name has one of these
};
inline constexpr Task kTasks[] = {
    {"train", "training", 30, ""},
    {"inference", "inference", 40, "infer inference generate generation serve server chat"},
    {"convert", "a conversion", 60, "convert converter conversion export exporter import importer roundtrip"}};
const Task* find_task(std::string_view name);
const Task& task_of(std::string_view program);

// About a job, except what it runs.
struct SlurmOptions {
  std::optional<int> nodes{};  // default: as many as the job needs
  int gpus_per_node = 8;       // 0: a cluster without GPUs
  double gpu_memory_gb = 80;   // of one of them
  std::string account{}, partition{};
  std::string time = "00:30:00";
  std::string job_name{};  // default: <recipe or program>-train
  std::string log_dir = "logs";
  std::string workdir{};       // default: the current folder; with_absolute_paths() makes it that of the ranks
  std::string style = "srun";  // or torchrun
  std::string task{};          // one of kTasks; default: by the program's name

  // Set by with_absolute_paths().
  std::string host_workdir{};   // workdir, as the host sees it; empty: only the image may have it
  std::string launch_folder{};  // where the job is launched

  std::string container{};
  std::vector<std::string> mounts{};  // SRC:DST
  std::string mpi{};                  // default: pmix in a container, else Slurm's own

  std::vector<std::string> env{};      // NAME=VALUE
  std::vector<std::string> secrets{};  // names; the script fails if one is not set
  std::vector<std::string> passed{};   // names of secrets that are passed on if set
  std::string cache_dir{};             // on a file system that all nodes share
  std::string warm_up{};               // shell text for phase 1
  std::string stage{};                 // where phase 1 copies braid to

  bool is_session = false;  // an interactive session, which needs no --secret

  std::optional<bool> requeue{};
  int stop_lead_s = 120;
  std::string stop_signal = "USR1";  // or TERM

  std::vector<std::string> sbatch{}, srun{};  // further options, passed on unchanged
  std::string output{};                       // the script; default: <job name>.sbatch
};

// All problems that do not depend on what the job runs. `where` of each is an option.
std::vector<Problem> validate(const SlurmOptions& options);

// Whether a container is a file rather than a name in a registry.
inline bool is_image_file(const std::string& container) {
  return container.ends_with(".sqsh") || container.starts_with("/") || container.starts_with(".");
}

// An option of srun that was given to sbatch.
std::optional<Problem> pyxis_in_sbatch(const std::string& option, const std::string& where);

// A name that pyxis cannot use: a registry needs # behind it, which the fix writes.
std::optional<Problem> image_problem(const std::string& container);

// --mount SRC:DST shows the host's SRC as DST in the container. Nothing if no mount covers the path; without a
// container, the path itself.
std::optional<std::string> path_on_host(const SlurmOptions& options, const std::string& inside);
std::optional<std::string> path_inside(const SlurmOptions& options, const std::string& on_host);
// Of an absolute path of either kind: the one that ranks see, and the one here.
std::string seen_by_ranks(const SlurmOptions& options, const std::string& path);
std::string seen_here(const SlurmOptions& options, const std::string& path);

// Names the mount that `path` needs.
Problem missing_mount(const std::string& what, const std::string& path);

// Makes all paths absolute. Relative ones start at workdir, and workdir at the current folder. Sources of mounts,
// images and the log folder become paths of the host; the others become paths that the ranks see. A container that is a
// file needs its folder: srun takes `image.sqsh` for a name in a registry.
SlurmOptions with_absolute_paths(SlurmOptions options, const std::string& current_folder);

// Letters, digits and ._- only: for a job's name, which is part of file names.
std::string safe_job_name(std::string_view name);

// Secrets are passed by name: their values come from the environment and are never written to a file.
bool names_a_secret(std::string_view variable);  // HF_TOKEN, WANDB_API_KEY, DB_PASSWORD

// Describes the secret in a text: the value of such a variable of this process, or what looks like a token.
std::optional<std::string> secret_in(std::string_view text);

// ConfigError if a shell text contains one, or gives such a variable or option (--hf-token) a literal value.
void refuse_secrets(std::string_view text);

struct SlurmJob {
  std::string title{};    // for the first line: "pretrain_gpt"
  std::string made_by{};  // the command line
  int nodes = 1, ranks_per_node = 1;
  std::string command{};                 // shell text: of a rank, or of the one torchrun of a node
  std::string zeroth_argument = "rank";  // $0 in the command
  std::vector<std::string> exports{};    // NAME=value, quoted for bash, besides those of the options
  std::string prelude{};                 // shell text before the command, on every rank
  std::string first_phase{};             // shell text that one task runs before all others; may be empty
  bool is_braid = false;                 // Braid reads Slurm's variables itself
  bool had_torchrun = false;
  bool sets_rank_variables = false;  // the text has RANK=... in it: see rank_environment()
  bool can_stop = false;             // ends cleanly on the stop signal
  std::vector<std::string> notes{};  // sentences for the reader
  std::string start{};               // how a run would start now: "resumes from ckpt/iter_0000100"; empty: anew
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
inline std::string log_stem(const SlurmOptions& options) { return options.log_dir + "/" + options.job_name + "_"; }

struct CacheVariable {
  std::string_view name, folder;  // the folder is inside --cache-dir
};
inline constexpr CacheVariable kCacheVariables[] = {
    {"HF_HOME", "huggingface"}, {"UV_CACHE_DIR", "uv"}, {"NEMO_HOME", "nemo"}};

std::vector<std::string> exports_for_gpus();  // the usual settings for training on NVIDIA GPUs

// salloc, srun for a shell on the nodes, and what to type there first, which ends with `last`. Paths are absolute.
std::string interactive_commands(const SlurmOptions& options, const std::string& last);

}  // namespace braid
