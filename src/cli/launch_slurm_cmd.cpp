// braid launch slurm: writes the sbatch script of a recipe, or of a command for one node.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/files.h"
#include "base/strings.h"
#include "cli/launch_commands.h"
#include "cli/recipe_call.h"
#include "cluster/megatron/rank_command.h"
#include "cluster/megatron/run_script.h"
#include "cluster/megatron/shell_text.h"
#include "cluster/slurm/script.h"
#include "run/recipe.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct LaunchSlurm {
  SlurmOptions options;
  std::string recipe_path, command_file, run_script;
  std::optional<int> gpus_per_node;  // these two: as given; `options` has the resolved values
  std::optional<std::string> time;
  bool requeue = false, no_requeue = false, dry_run = false, submit = false, force = false;
};

// Fills options that were not given from the recipe: from its section `cluster`, and the nodes from its ranks.
void take_defaults(LaunchSlurm& launch, const ClusterConfig& cluster, std::optional<int> ranks) {
  SlurmOptions& options = launch.options;
  options.gpus_per_node = launch.gpus_per_node.value_or(cluster.gpus_per_node);
  options.time = launch.time.value_or(cluster.time);
  if (cluster.requeue) options.requeue = true;
  if (launch.requeue || launch.no_requeue) options.requeue = launch.requeue;
  if (ranks && !options.nodes)
    options.nodes = options.gpus_per_node > 0 ? std::max(*ranks / options.gpus_per_node, 1) : 1;
}

SlurmJob job_of_file(const SlurmOptions& options, const std::string& path, const std::string& text) {
  SlurmJob job = job_of_command(options, text);
  if (path == "-") return job;
  const fs::path file = fs::absolute(path).lexically_normal();
  job.zeroth_argument = file.string();
  // BASH_SOURCE is set only in a script that is run as a file; otherwise its folder looks like the current one.
  if (text.find("BASH_SOURCE") != std::string::npos && file.parent_path() != options.workdir)
    throw ConfigError(
        {fmt::format("'{}' uses BASH_SOURCE to find its folder, which does not work in the job", path),
         "--command-file",
         fmt::format("write $0 instead, or give --workdir {}", shell_quoted(file.parent_path().string()))});
  return job;
}

void check_sources(const LaunchSlurm& launch, const std::vector<ConfigOverride>& overrides, bool has_words) {
  const int sources = (launch.recipe_path.empty() ? 0 : 1) + (has_words ? 1 : 0) +
                      (launch.command_file.empty() ? 0 : 1) + (launch.run_script.empty() ? 0 : 1);
  if (sources != 1)
    throw ConfigError({sources == 0
                           ? "there is neither a recipe nor a command"
                           : "a recipe, a command after --, --command-file and --run-script cannot be combined",
                       "command line",
                       "braid launch slurm RECIPE ..., or braid launch slurm ... -- COMMAND, --command-file FILE or "
                       "--run-script FILE"});
  if (!launch.recipe_path.empty()) return;
  if (!overrides.empty())
    throw ConfigError({fmt::format("--{} is a recipe key, but there is no recipe", overrides[0].path), "command line",
                       "give the command's options after --"});
  if (!launch.options.stage.empty())
    throw ConfigError({"only braid can be staged", "--stage", "copy other programs with --warm-up"});
}

// The base of a job's name. It is needed before the job is complete, since the job's text contains the log's name.
std::string title_of_command(const std::string& command_file, const std::string& text) {
  if (!command_file.empty() && command_file != "-") return fs::path(command_file).stem().string();
  const std::string program = program_name(text);
  return program.empty() ? "command" : program;
}

void complete(LaunchSlurm& launch, const std::string& title) {
  SlurmOptions& options = launch.options;
  const std::vector<Problem> problems = validate(options);
  if (!problems.empty()) throw ConfigError(problems);
  options = with_absolute_paths(std::move(options), fs::current_path().string());
  if (options.job_name.empty()) {
    const std::string name = safe_job_name(title);
    options.job_name = name.ends_with("train") ? name : name + "-train";
  }
  if (options.output.empty()) options.output = options.job_name + ".sbatch";
  for (const char* name : {"HF_TOKEN", "GH_TOKEN", "WANDB_API_KEY"})
    if (std::getenv(name)) options.passed.push_back(name);
}

void check(Preflight preflight, const LaunchSlurm& launch, const Allocation& allocation) {
  check_with_slurm(launch.options, allocation, preflight);
  settle(preflight, launch.force);
}

SlurmJob checked_recipe_job(LaunchSlurm& launch, const std::vector<std::string>& overrides) {
  const bool is_stream =
      launch.recipe_path == "-" || (fs::exists(launch.recipe_path) && !fs::is_directory(launch.recipe_path) &&
                                    is_own_descriptor(launch.recipe_path));
  if (is_stream)
    throw ConfigError({fmt::format("'{}' can be read only by this command, but the job's ranks read the recipe later",
                                   launch.recipe_path),
                       "command line", "give the path of a file that all nodes can read"});
  const Recipe recipe = read_recipe_call(launch.recipe_path, overrides).recipe;
  take_defaults(launch, recipe.cluster, Topology(recipe.topology, workload_of(recipe)).world_size());
  complete(launch, fs::path(launch.recipe_path).stem().string());
  const SlurmOptions& options = launch.options;
  const Allocation allocation = {*options.nodes, options.gpus_per_node};
  check(preflight_of(recipe, options, allocation), launch, allocation);
  return job_of_recipe(options, launch.recipe_path, recipe, overrides);
}

SlurmJob checked_command_job(LaunchSlurm& launch, const std::vector<std::string>& command_line) {
  const bool in_file = !launch.command_file.empty();
  const std::string text = !launch.run_script.empty() ? started_command(run_script(launch.run_script))
                           : in_file                  ? read_shell_file(launch.command_file, "--command-file")
                                                      : command_text(words_behind_dashes(command_line));
  take_defaults(launch, ClusterConfig{}, std::nullopt);
  complete(launch, title_of_command(launch.command_file, text));
  const SlurmOptions& options = launch.options;
  const SlurmJob job = in_file ? job_of_file(options, launch.command_file, text) : job_of_command(options, text);
  const Allocation allocation = {job.nodes, options.gpus_per_node};
  check(preflight_of(text, options, allocation), launch, allocation);
  return job;
}

void check_secrets(const SlurmOptions& options) {
  for (const std::string& name : options.secrets)
    if (const char* value = std::getenv(name.c_str()); !value || !*value)
      throw ConfigError({fmt::format("{} is not set", name), "--secret", fmt::format("export {} first", name)});
}

int launch_slurm(LaunchSlurm launch, const Call& call) {
  check_sources(launch, parse_overrides(call.arguments, call.option_names), contains(call.command_line, "--"));
  SlurmJob job = launch.recipe_path.empty() ? checked_command_job(launch, call.command_line)
                                            : checked_recipe_job(launch, call.arguments);
  if (launch.submit) check_secrets(launch.options);
  std::vector<std::string> made_by = call.command_line;
  made_by[0] = "braid";
  job.made_by = joined_quoted(made_by);
  const std::string script = slurm_script(launch.options, job);
  if (launch.dry_run) {
    fmt::print("{}", script);
    return 0;
  }
  write_script(launch.options, script);
  if (launch.submit) return submit_script(launch.options);
  fmt::print("wrote {}: {}, {}\n  sbatch {}\n", launch.options.output, counted(job.nodes, "node"),
             counted(job.nodes * job.ranks_per_node, "rank"), shell_quoted(launch.options.output));
  return 0;
}

std::vector<Option> options_of(LaunchSlurm& launch) {
  SlurmOptions& o = launch.options;
  return {
      {"recipe", &launch.recipe_path, "recipe file; its keys may follow, as for braid train"},
      {"--command-file", &launch.command_file, "a file with the command as shell text; - is standard input"},
      {kRunScript, &launch.run_script, std::string("the command that a script starts: ") + kRunScriptHelp},
      {"--nodes", &o.nodes, "how many nodes (default: the recipe's ranks / GPUs per node, else 1)"},
      {"--gpus-per-node", &launch.gpus_per_node,
       "GPUs (and so ranks) per node; 0 on a cluster without GPUs (default: the recipe's, else 8)"},
      {"--gpu-memory", &o.gpu_memory_gb, "memory of a GPU in GB, to check whether the weights fit",
       Rules{.check = NumberSign::Positive, .shows_default = true}},
      {"--account", &o.account, "Slurm account"},
      {"--partition", &o.partition, "Slurm partition"},
      {"--time", &launch.time, "in any of Slurm's formats (default: the recipe's, else 00:30:00)"},
      {"--job-name", &o.job_name, "default: <recipe or program>-train"},
      {"--log-dir", &o.log_dir, "folder for logs and metrics, on a shared file system", kDefaultShown},
      {"--workdir", &o.workdir, "where ranks start (default: the current folder)"},
      {"--style", &o.style, "srun: one task per rank; torchrun: one torchrun per node", kDefaultShown},
      {"--container", &o.container, "image that ranks run in, e.g. image.sqsh (Enroot through pyxis)"},
      {"--mount", &o.mounts, "SRC:DST to mount in the container; may be repeated", kOneEach},
      {"--mpi", &o.mpi, "srun's --mpi (default: pmix in a container)"},
      {"--env", &o.env, "NAME=VALUE for all ranks; may be repeated", kOneEach},
      {"--secret", &o.secrets, "a variable that must be set at submission; its value is not written to the script",
       kOneEach},
      {"--cache-dir", &o.cache_dir, "shared folder for HF_HOME, UV_CACHE_DIR and NEMO_HOME"},
      {"--warm-up", &o.warm_up,
       "shell text that one task runs first; each rank then runs it again, with nothing left to do"},
      {"--stage", &o.stage, "from a recipe: copy braid and its libraries to this shared folder first"},
      {"--requeue", &launch.requeue, "near the time limit, save and requeue the job"},
      {"--no-requeue", &launch.no_requeue, "never requeue the job, not even after a node failure",
       Rules{.excludes = "--requeue"}},
      {"--stop-lead", &o.stop_lead_s, "how many seconds before the time limit the run is asked to save", kDefaultShown},
      {"--stop-signal", &o.stop_signal, "signal that the ranks get then: USR1 or TERM", kDefaultShown},
      {"--sbatch", &o.sbatch, "a further option of sbatch, e.g. --sbatch --qos=high; may be repeated", kOneEach},
      {"--srun", &o.srun, "a further option of srun; may be repeated", kOneEach},
      {"--output", &o.output, "the script's name (default: <job name>.sbatch)"},
      {"--dry-run", &launch.dry_run, "print the script, write nothing"},
      {"--force", &launch.force, "continue even if a check fails: nodes, memory, files, partition, account"},
      {"--submit", &launch.submit, "also call sbatch", Rules{.excludes = "--dry-run"}}};
}

}  // namespace

Command launch_slurm_command() {
  const auto launch = std::make_shared<LaunchSlurm>();
  return {.name = "slurm",
          .help = "Write the sbatch script of a recipe, or of any single-node command",
          .options = options_of(*launch),
          .extras = Extras::RecipeKeysOrCommand,
          .footer =
              "Examples:\n"
              "  braid launch slurm recipes/nemotron-vlm-54l-mock.yaml --account A \\\n"
              "    --partition batch --submit\n"
              "  braid launch slurm --nodes 4 --partition batch -- \\\n"
              "    torchrun --nproc_per_node=8 pretrain_gpt.py --bf16\n"
              "  braid launch slurm --nodes 4 --partition batch -- \\\n"
              "    'cd src && torchrun --nproc_per_node=8 train.py \"$DATA\"'\n\n"
              "With a recipe, its keys can be set here as for braid train (see braid train --help).",
          .run = [launch](Call& call) { call.exit_code = launch_slurm(*launch, call); }};
}

}  // namespace braid
