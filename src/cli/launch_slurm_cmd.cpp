// braid launch slurm and interactive: the sbatch script of a recipe, or of a command for one node; and the commands for
// a shell on a cluster's nodes.
#include <fmt/ranges.h>
#include <pwd.h>
#include <unistd.h>
#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/start.h"
#include "cluster/megatron/commands.h"
#include "cluster/slurm/job.h"
#include "cluster/slurm/script.h"
#include "formats/atomic_file.h"
#include "plan/topology_config.h"
#include "predict/memory.h"
#include "run/recipe.h"
#include "run/start_checks.h"

namespace braid {
namespace {

std::vector<PathUse> paths_of(const SlurmOptions& options) {
  std::vector<PathUse> uses = {{"--workdir", options.workdir, PathUse::MustExist}};
  if (!options.log_dir.empty()) uses.push_back({"--log-dir", options.log_dir, PathUse::Written});
  if (is_image_file(options.container)) uses.push_back({"--container", options.container, PathUse::MustExist});
  for (const std::string& mount : options.mounts)
    uses.push_back({"--mount", mount.substr(0, mount.find(':')), PathUse::MustExist});
  for (const auto& [what, path] : {std::pair{"--cache-dir", options.cache_dir}, {"--stage", options.stage}})
    if (!path.empty()) uses.push_back({what, path, PathUse::Written});
  for (const std::string& setting : options.env)
    for (const CacheVariable& cache : kCacheVariables)
      if (setting.starts_with(std::string(cache.name) + "="))
        uses.push_back({std::string(cache.name), setting.substr(cache.name.size() + 1), PathUse::Shared});
  return uses;
}

void check_surroundings(const std::string& text, const SlurmOptions& options, const Allocation& allocation,
                        Preflight& preflight) {
  if (is_there(fs::path(options.workdir) / "nemo_experiments"))
    preflight.warnings.push_back({"there is a folder nemo_experiments: Megatron-Bridge resumes from a checkpoint there",
                                  options.workdir, "remove it, unless that is what you want"});
  const bool is_python = text.find("python") != std::string::npos || text.find("torchrun") != std::string::npos;
  const bool has_home = std::ranges::any_of(options.env, [](const auto& set) { return set.starts_with("NEMO_HOME="); });
  if (!options.container.empty() && allocation.nodes > 1 && is_python && options.cache_dir.empty() && !has_home)
    preflight.warnings.push_back(
        {"the caches (HF_HOME, UV_CACHE_DIR, NEMO_HOME) are inside each container: nodes do not see data prepared on "
         "other nodes",
         "--container", "give --cache-dir FOLDER on the shared file system"});
  if (allocation.nodes > 1 || options.style != "torchrun")  // else there is one task
    for (const std::string& file : shared_outputs(text))
      preflight.warnings.push_back({fmt::format("all tasks of the job would overwrite one file: {}", file),
                                    "the command",
                                    "leave it out (the job's log has all output), or put $SLURM_PROCID into its name"});
  std::vector<std::string> directives = split(text, '\n');
  std::erase_if(directives, [](const std::string& line) { return !line.starts_with("#SBATCH"); });
  if (!directives.empty())
    preflight.warnings.push_back(
        {fmt::format("these lines of the command have no effect: {}", fmt::join(directives, "; ")), "the command",
         "give them as options, e.g. --time, or --sbatch --qos=high"});
}

// Paths are relative to the job's folder. What is inside a container is not known here.
void check_data(Recipe recipe, const SlurmOptions& options, const Allocation& allocation, Preflight& preflight) {
  DataConfig& data = recipe.data.set;
  if (!is_mock(recipe.data) && !data.path.empty()) {
    if (!options.container.empty()) return;
    std::vector<PathUse> unseen;
    data.path = data_path_from(options.workdir, data.path);
    if (!data.tokenizer.empty()) data.tokenizer = fs::path(options.workdir) / data.tokenizer;
    for (const auto& [key, path] : {std::pair("data.path", data.path), std::pair("data.tokenizer", data.tokenizer)})
      if (!can_be_seen(path) && !path.empty() && !is_gpt_data(recipe.data))
        unseen.push_back({key, path, PathUse::MustExist});
    check_paths(unseen, allocation, preflight);
    if (!unseen.empty()) return;
  }
  const Topology topology(recipe.topology, workload_of(recipe));
  append(preflight.problems, check_data(recipe, topology, data_uses(recipe)).problems);
}

// The checks before the launch of a recipe.
Preflight preflight_of(const Recipe& recipe, const SlurmOptions& options, const Allocation& allocation) {
  Preflight preflight;
  if (allocation.gpus_per_node > 0) {
    check_nodes(recipe.topology, workload_of(recipe), allocation, preflight);
    // Of a whole step: parameters, optimizer, activations.
    const Topology topology(recipe.topology, workload_of(recipe));
    append(preflight.problems,
           gpu_memory_problems(recipe, topology, static_cast<std::int64_t>(options.gpu_memory_gb * 1e9)));
  }
  std::vector<PathUse> uses = paths_of(options);
  const std::string &save = recipe.checkpoint.save, &load = recipe.checkpoint.load;
  if (!save.empty()) uses.push_back({"--save", fs::path(options.workdir) / save, PathUse::Written});
  if (!load.empty() && load != save) uses.push_back({"--load", fs::path(options.workdir) / load, PathUse::Shared});
  check_paths(uses, allocation, preflight);
  check_data(recipe, options, allocation, preflight);
  return preflight;
}

// The checks before the launch of a command.
Preflight preflight_of(const std::string& command_text, const SlurmOptions& options, const Allocation& allocation) {
  Preflight preflight;
  std::vector<std::string> literal_words;
  for (const ShellCommand& command : simple_commands(command_text))
    for (const ShellWord& word : command.words)
      if (word.value) literal_words.push_back(*word.value);
  const ParallelFlags flags = parallel_flags(literal_words);
  if (allocation.gpus_per_node > 0) {
    check_nodes(flags, allocation, preflight);
    check_experts(flags, options.gpu_memory_gb, allocation, preflight);
  }
  check_paths(paths_of(options), allocation, preflight);
  check_surroundings(command_text, options, allocation, preflight);
  return preflight;
}

void print_warning(const Problem& problem) {
  const std::string text =
      fmt::format("braid: warning: {}\n  where: {}\n  fix:   {}", problem.what, problem.where, problem.fix);
  fmt::print(stderr, "{}\n", fitted(text, STDERR_FILENO));
}

// Also asks Slurm. Prints warnings and throws problems as a ConfigError; with `force`, problems are only warnings.
void settle(Preflight preflight, const SlurmOptions& options, const Allocation& allocation, bool force) {
  const passwd* user = getpwuid(geteuid());
  check_slurm({options.account, options.partition, options.time, allocation},
              view_slurm(user ? user->pw_name : std::to_string(geteuid())), preflight);
  std::ranges::for_each(preflight.warnings, print_warning);
  if (!preflight.problems.empty() && !force) throw ConfigError(preflight.problems);
  std::ranges::for_each(preflight.problems, print_warning);
}

// Copies braid's two programs and their libraries except glibc's, which must match the node's kernel and loader. Files
// are replaced, not overwritten, so that processes running from an older copy keep it.
std::string staging(const fs::path& braid, const std::string& folder) {
  return fmt::format(R"sh(set -eo pipefail
replace() {{ cmp -s "$1" "$2" || cp --remove-destination "$1" "$2"; }}
mkdir -p {folder}/lib
replace {braid} {folder}/braid
replace {tensors} {folder}/{tensors_name}
{{ ldd {braid}; ldd {tensors}; }} | while read -r name arrow path _; do
  case $name in
    linux-vdso* | ld-linux* | */ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | \
      libutil.so.* | libresolv.so.* | libanl.so.* | libnsl.so.* | libBrokenLocale.so.* | libthread_db.so.*) continue ;;
  esac
  if [[ $arrow == '=>' && ! -f $path ]]; then echo "braid needs $name, which this node does not have" >&2 && exit 1; fi
  if [[ $arrow == '=>' ]]; then replace "$path" {folder}/lib/"${{path##*/}}"; fi
done
)sh",
                     fmt::arg("braid", shell_quoted(braid.string())),
                     fmt::arg("tensors", shell_quoted((braid.parent_path() / kTensorProgram).string())),
                     fmt::arg("tensors_name", kTensorProgram), fmt::arg("folder", shell_quoted(folder)));
}

void check_requeue(const SlurmOptions& options, const Recipe& recipe) {
  const std::string &save = recipe.checkpoint.save, &load = recipe.checkpoint.load;
  const auto folder = [&](const std::string& path) {
    return (fs::path(options.workdir) / path / "").lexically_normal();
  };
  if (!options.requeue.value_or(false) || (!save.empty() && !load.empty() && folder(save) == folder(load))) return;
  throw ConfigError(
      {fmt::format("a requeued run would start from {} each time, because the recipe does not {}",
                   load.empty() ? "its beginning" : "'" + load + "'", save.empty() ? "save" : "load what it saves"),
       "--requeue", "give --save FOLDER and --load FOLDER with the same folder"});
}

// A working folder that only the nodes or a container have is not created here.
void make_log_folder(const SlurmOptions& options) {
  const std::string& path = options.log_dir;
  std::error_code error;
  const bool below_workdir = fs::path(path).lexically_relative(options.workdir).begin()->string() != "..";
  if (!can_be_seen(path) || (below_workdir && !is_there(options.workdir)))
    return print_warning({fmt::format("the log folder '{}' cannot be created from here", path), "--log-dir",
                          "create it on the nodes, or give a folder they share with this machine; without it Slurm "
                          "ends the job without a message"});
  fs::create_directories(path, error);
  if (error)
    throw ConfigError({fmt::format("cannot create the folder '{}': {}", path, error.message()), "--log-dir",
                       "give a folder that you can write to; without it Slurm ends the job without a message"});
}

// `recipe` is the result of `recipe_path` and `overrides`, as in braid train. ConfigError if the recipe's ranks do not
// divide evenly among the nodes; the preflight checks whether they fill the GPUs.
SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path, const Recipe& recipe,
                       const std::vector<std::string>& overrides) {
  check_requeue(options, recipe);
  const int ranks = Topology(recipe.topology, workload_of(recipe)).world_size(), nodes = *options.nodes;
  if (ranks % nodes != 0)
    throw ConfigError(
        {fmt::format("the recipe's {} cannot be divided evenly among {} nodes", counted(ranks, "rank"), nodes),
         "--nodes", "change --nodes, or the sizes of the modules"});
  const bool staged = !options.stage.empty();
  std::vector<std::string> words = {staged ? options.stage + "/braid" : own_executable(), "train",
                                    fs::absolute(recipe_path).lexically_normal().string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  const std::string train = joined_quoted(words), stem = shell_quoted(log_stem(options)) + "\"$SLURM_JOB_ID\"";
  const std::string library_path =
      staged ? fmt::format("LD_LIBRARY_PATH={}/lib\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\" ",
                           shell_quoted(options.stage))
             : "";
  // Not exported: torchrun must not load Braid's libraries.
  const std::string command = (staged ? "env " + library_path : "") + train +
                              (recipe.log.metrics_file.empty() ? " --metrics-file=" + stem + ".jsonl" : "");
  SlurmJob job;
  job.title = fs::path(recipe_path).stem().string();
  job.nodes = nodes;
  job.ranks_per_node = ranks / nodes;
  job.is_braid = true;
  job.can_stop = !recipe.checkpoint.save.empty();
  job.exports = exports_for_gpus();
  job.command = options.style == "torchrun"
                    ? fmt::format("exec torchrun {} --no-python {}", torchrun_world(job.ranks_per_node, false), command)
                    : "exec " + command;
  job.first_phase = (staged ? staging(own_executable(), options.stage) : "") +
                    "# Finds a missing program, library or recipe with one task, before all ranks start.\n" +
                    library_path + train + " --print-recipe >" + stem + ".yaml\n";
  if (const int unused = options.gpus_per_node - job.ranks_per_node; unused > 0)
    job.notes.push_back(fmt::format("Of the {} GPUs per node, {} {} no rank.", options.gpus_per_node, unused,
                                    unused == 1 ? "has" : "have"));
  return job;
}

// Also creates the log folder. ConfigError if the file exists and was not made by Braid.
void write_script(const SlurmOptions& options, const std::string& text) {
  const std::string& path = options.output;
  // Reading a device may block, and the script would replace it.
  if (is_there(path) && !is_file(path))
    throw ConfigError({fmt::format("'{}' is not a plain file", path), "--output", "give another name"});
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 3 && line != kSlurmScriptMark; ++i) std::getline(file, line);
  if (is_there(path) && line != kSlurmScriptMark)
    throw ConfigError({fmt::format("'{}' exists and was not made by braid launch slurm", path), "--output",
                       "give another name, or remove it"});
  make_log_folder(options);
  try {
    write_file(path, text, 0700);
  } catch (const std::system_error& error) {
    throw ConfigError({error.what(), "--output", "give the name of a file in a folder that you can write to"});
  }
}

int submit_script(const SlurmOptions& options) {
  const auto sbatch = output_of({"sbatch", "--parsable", options.output}, std::chrono::minutes(2));
  if (!sbatch)
    throw ConfigError({"there is no sbatch here, or it does not respond", "--submit",
                       fmt::format("run on the cluster's login node: sbatch {}", shell_quoted(options.output))});
  const std::string job_id = sbatch->out.substr(0, sbatch->out.find_first_of(";\n"));  // JOB or JOB;CLUSTER
  if (sbatch->exit_code != 0 || !parse_int64(job_id)) {
    fmt::print(stderr, "braid: sbatch did not accept {}:\n{}{}", options.output, sbatch->out, sbatch->err);
    return 1;
  }
  fmt::print(stderr, "{}", sbatch->err);
  fmt::print("submitted job {0}\n  {1} launch status {0}\n  {1} launch tail {0}\n  {1} doctor {2}\n", job_id,
             called_as(), shell_quoted(log_stem(options) + job_id + ".log"));
  return 0;
}

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

void check_sources(const LaunchSlurm& launch, const std::vector<ConfigOverride>& overrides, bool has_words) {
  const int sources = (launch.recipe_path.empty() ? 0 : 1) + (has_words ? 1 : 0) +
                      (launch.command_file.empty() ? 0 : 1) + (launch.run_script.empty() ? 0 : 1);
  if (sources != 1)
    throw misuse(sources == 0 ? "there is neither a recipe nor a command"
                              : "a recipe, a command after --, --command-file and --run-script cannot be combined",
                 "braid launch slurm RECIPE ..., or braid launch slurm ... -- COMMAND, --command-file FILE or "
                 "--run-script FILE");
  if (!launch.recipe_path.empty()) return;
  if (!overrides.empty())
    throw misuse(fmt::format("--{} is a recipe key, but there is no recipe", overrides[0].path),
                 "give the command's options after --");
  if (!launch.options.stage.empty())
    throw ConfigError({"only braid can be staged", "--stage", "copy other programs with --warm-up"});
}

void complete(LaunchSlurm& launch, const std::string& title) {
  SlurmOptions& options = launch.options;
  throw_if_any(validate(options));
  options = with_absolute_paths(std::move(options), fs::current_path().string());
  if (options.job_name.empty()) {
    const std::string name = safe_job_name(title);
    options.job_name = name.ends_with("train") ? name : name + "-train";
  }
  if (options.output.empty()) options.output = options.job_name + ".sbatch";
  for (const char* name : {"HF_TOKEN", "GH_TOKEN", "WANDB_API_KEY"})
    if (std::getenv(name)) options.passed.push_back(name);
}

SlurmJob checked_recipe_job(LaunchSlurm& launch, const std::vector<std::string>& overrides) {
  const bool is_stream =
      launch.recipe_path == "-" || (fs::exists(launch.recipe_path) && !fs::is_directory(launch.recipe_path) &&
                                    is_own_descriptor(launch.recipe_path));
  if (is_stream)
    throw misuse(fmt::format("'{}' can be read only by this command, but the job's ranks read the recipe later",
                             launch.recipe_path),
                 "give the path of a file that all nodes can read");
  const Recipe recipe = read_recipe_call(launch.recipe_path, overrides).recipe;
  take_defaults(launch, recipe.cluster, Topology(recipe.topology, workload_of(recipe)).world_size());
  complete(launch, fs::path(launch.recipe_path).stem().string());
  const SlurmOptions& options = launch.options;
  const Allocation allocation = {*options.nodes, options.gpus_per_node};
  settle(preflight_of(recipe, options, allocation), options, allocation, launch.force);
  return job_of_recipe(options, launch.recipe_path, recipe, overrides);
}

SlurmJob checked_command_job(LaunchSlurm& launch, const std::vector<std::string>& command_line) {
  const std::string& path = launch.command_file;
  const bool in_file = !path.empty(), is_named = in_file && path != "-";
  const std::string text = !launch.run_script.empty() ? started_command(run_script(launch.run_script))
                           : in_file                  ? read_shell_file(path, "--command-file")
                                                      : command_text(words_behind_dashes(command_line));
  take_defaults(launch, ClusterConfig{}, std::nullopt);
  // A job's text contains the name of its log, so its own name is needed first.
  const std::string title = is_named ? fs::path(path).stem().string() : program_name(text);
  complete(launch, title.empty() ? "command" : title);
  const SlurmOptions& options = launch.options;
  SlurmJob job = job_of_command(options, text);
  if (is_named) {
    const fs::path file = fs::absolute(path).lexically_normal();
    job.zeroth_argument = file.string();
    // BASH_SOURCE is set only in a script that is run as a file; otherwise its folder looks like the current one.
    if (text.find("BASH_SOURCE") != std::string::npos && file.parent_path() != options.workdir)
      throw ConfigError(
          {fmt::format("'{}' uses BASH_SOURCE to find its folder, which does not work in the job", path),
           "--command-file",
           fmt::format("write $0 instead, or give --workdir {}", shell_quoted(file.parent_path().string()))});
  }
  const Allocation allocation = {job.nodes, options.gpus_per_node};
  settle(preflight_of(text, options, allocation), options, allocation, launch.force);
  return job;
}

int launch_slurm(LaunchSlurm launch, const Call& call) {
  check_sources(launch, parse_overrides(call.arguments, call.option_names), contains(call.command_line, "--"));
  SlurmJob job = launch.recipe_path.empty() ? checked_command_job(launch, call.command_line)
                                            : checked_recipe_job(launch, call.arguments);
  for (const std::string& name : launch.options.secrets)
    if (const char* value = std::getenv(name.c_str()); launch.submit && (!value || !*value))
      throw ConfigError({fmt::format("{} is not set", name), "--secret", fmt::format("export {} first", name)});
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

// --- braid launch interactive ----------------------------------------------------------------------------------------
struct Interactive {
  SlurmOptions options;
  std::string nodelist;
  bool force = false;
};

void interactive(Interactive session) {
  SlurmOptions& options = session.options;
  if (!session.nodelist.empty())
    throw ConfigError({fmt::format("-w {} asks srun for nodes that the allocation may not have", session.nodelist),
                       "-w",
                       "leave it out: srun uses the nodes that salloc got. With it, Slurm says \"Requested node "
                       "configuration is not available\""});
  if (options.job_name.empty()) options.job_name = options.account.empty() ? "debug" : options.account + "-debug";
  options.workdir = fs::current_path().string();
  throw_if_any(validate(options));
  const Allocation allocation = {*options.nodes, options.gpus_per_node};
  settle(preflight_of(std::string(), options, allocation), options, allocation, session.force);
  fmt::print("{}", interactive_commands(options));
}

}  // namespace

std::string called_as() {
  const std::string name = program_invocation_name;
  return name.find('/') == name.npos ? "braid" : shell_quoted(name);
}

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

Command launch_interactive_command() {
  const auto session = std::make_shared<Interactive>();
  SlurmOptions& o = session->options;
  o.nodes = 1;
  o.is_session = true;
  o.log_dir = "";  // nothing is logged
  o.partition = "interactive";
  o.time = "240";
  return {
      .name = "interactive",
      .help = "Print the commands for a shell on a cluster's nodes",
      .options = {{"--account", &o.account, "Slurm account"},
                  {"--partition", &o.partition, "Slurm partition", kDefaultShown},
                  {"--nodes", &o.nodes, "how many nodes", Rules{.check = NumberSign::Positive, .shows_default = true}},
                  {"--gpus-per-node", &o.gpus_per_node, "passed to salloc and to srun", kDefaultShown},
                  {"--time", &o.time, "in any of Slurm's formats; a plain number is minutes", kDefaultShown},
                  {"--job-name", &o.job_name, "(default: ACCOUNT-debug)"},
                  {"--container", &o.container, "image for the shell"},
                  {"--mount", &o.mounts, "SRC:DST in the container; may be given several times", kOneEach},
                  {"--cache-dir", &o.cache_dir, "shared folder for HF_HOME, UV_CACHE_DIR, NEMO_HOME"},
                  {"--env", &o.env, "NAME=VALUE to export in the shell", kOneEach},
                  {"--warm-up", &o.warm_up, "command to run there first, e.g. 'uv sync'"},
                  {"--mpi", &o.mpi, "srun's --mpi (default: pmix with a container)"},
                  {"-w,--nodelist", &session->nodelist, "not allowed; the error explains why"},
                  {"--force", &session->force, "print the commands even if a check fails"}},
      .run = [session](Call&) { interactive(*session); }};
}

Command launch_command() {
  return {.name = "launch",
          .help = "Start a run on a cluster or on this machine, and monitor it",
          .subcommands = {launch_slurm_command(), launch_interactive_command(), named(kLaunchLocal),
                          launch_status_command(), launch_tail_command()}};
}

}  // namespace braid
