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

// A path that ranks use, as this machine sees it. It needs a mount.
void use_inside(const PathUse& use, const SlurmOptions& options, std::vector<PathUse>& uses, Preflight& preflight) {
  if (use.path.empty()) return;
  if (const auto path = path_on_host(options, use.path))
    uses.push_back({use.what, *path, use.kind});
  else
    preflight.problems.push_back(missing_mount(use.what, use.path));
}

std::vector<PathUse> paths_of(const SlurmOptions& options, Preflight& preflight) {
  std::vector<PathUse> uses;
  if (options.host_workdir.empty())
    preflight.warnings.push_back(
        {fmt::format("'{}' cannot be checked from here: no --mount covers it, so the image must have it",
                     options.workdir),
         "--workdir", fmt::format("if it is a folder of the host, give --mount FOLDER:{}", options.workdir)});
  else if (options.is_session)
    uses.push_back({"--workdir", options.host_workdir, PathUse::MustExist});
  else
    use_inside({"--workdir", options.workdir, PathUse::MustExist}, options, uses, preflight);
  if (!options.log_dir.empty()) uses.push_back({"--log-dir", options.log_dir, PathUse::Written});
  if (is_image_file(options.container)) uses.push_back({"--container", options.container, PathUse::MustExist});
  for (const std::string& mount : options.mounts)
    uses.push_back({"--mount", mount.substr(0, mount.find(':')), PathUse::MustExist});
  for (const auto& [what, path] : {std::pair{"--cache-dir", options.cache_dir}, {"--stage", options.stage}})
    use_inside({what, path, PathUse::Written}, options, uses, preflight);
  for (const std::string& setting : options.env)
    for (const CacheVariable& cache : kCacheVariables)
      if (setting.starts_with(std::string(cache.name) + "="))
        use_inside({std::string(cache.name), setting.substr(cache.name.size() + 1), PathUse::Shared}, options, uses,
                   preflight);
  return uses;
}

// What phase 1 does to a container is gone when the container ends.
void check_first_phase(const std::string& once, const SlurmOptions& options, Preflight& preflight) {
  if (once.empty() || options.container.empty()) return;
  if (options.host_workdir.empty())
    preflight.warnings.push_back(
        {fmt::format("what phase 1 changes in '{}' is lost when its container ends", options.workdir), "the command",
         fmt::format("give --mount FOLDER:{}, unless the image is complete", options.workdir)});
  if (once.find("once wandb login") != once.npos)
    preflight.warnings.push_back({"wandb login writes to the home folder of the container, which ends with phase 1",
                                  "the command", "export WANDB_API_KEY instead: it is passed on by its name"});
}

void check_surroundings(const std::string& text, const SlurmOptions& options, const Allocation& allocation,
                        Preflight& preflight) {
  const std::string once = phases_of(text).once;
  check_first_phase(once, options, preflight);
  const bool is_removed = (once + options.warm_up).find("nemo_experiments") != once.npos;
  if (!is_removed && !options.host_workdir.empty() && is_there(fs::path(options.host_workdir) / "nemo_experiments"))
    preflight.warnings.push_back({"there is a folder nemo_experiments: Megatron-Bridge resumes from a checkpoint there",
                                  options.host_workdir, "remove it, unless that is what you want"});
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
  for (const std::string& line : directives)
    if (const std::size_t option = line.find("--"); option != line.npos)
      if (auto problem = pyxis_in_sbatch(line.substr(option), "the command")) preflight.problems.push_back(*problem);
  if (!directives.empty())
    preflight.warnings.push_back(
        {fmt::format("these lines of the command have no effect: {}", fmt::join(directives, "; ")), "the command",
         "give them as options, e.g. --time, or --sbatch --qos=high"});
}

// Paths are relative to the job's folder. A data set in a container may name further paths that only the container has.
void check_data(Recipe recipe, const SlurmOptions& options, const Allocation& allocation, Preflight& preflight) {
  DataConfig& data = recipe.data.set;
  if (!is_mock(recipe.data) && !data.path.empty()) {
    std::vector<PathUse> uses;
    for (const auto& [key, path] : {std::pair("data.path", &data.path), std::pair("data.tokenizer", &data.tokenizer)}) {
      if (options.container.empty() || !path->empty()) *path = fs::path(options.workdir) / *path;
      use_inside({key, *path, PathUse::MustExist}, options, uses, preflight);
    }
    if (options.container.empty()) std::erase_if(uses, [](const PathUse& use) { return can_be_seen(use.path); });
    check_paths(uses, allocation, preflight);
    if (!uses.empty() || !options.container.empty()) return;
  }
  const Topology topology(recipe.topology, workload_of(recipe));
  append(preflight.problems, check_data(recipe, topology, data_uses(recipe)).problems);
}

// Relative paths are those of the job.
CheckpointConfig in_folder_of(const SlurmOptions& options, CheckpointConfig config) {
  for (std::string* path : {&config.save, &config.load, &config.load_nemotron, &config.load_vision_from,
                            &config.init.nemotron, &config.init.vision, &config.init.language, &config.init.finetune})
    if (!path->empty()) *path = fs::path(options.workdir) / *path;
  return config;
}

// Returns how the run would start now, as SlurmJob::start.
std::string check_checkpoints(const Recipe& recipe, const SlurmOptions& options, const Allocation& allocation,
                              Preflight& preflight) {
  const CheckpointConfig config = in_folder_of(options, recipe.checkpoint);
  const std::string &save = config.save, &load = config.load, load_here = seen_here(options, load);
  append(preflight.problems, init_problems(config));
  std::vector<PathUse> uses;
  use_inside({"--save", save, PathUse::Written}, options, uses, preflight);
  if (load != save) use_inside({"--load", load, PathUse::Shared}, options, uses, preflight);
  RunStart start;
  const bool is_seen = load.empty() || (path_on_host(options, load) && can_be_seen(load_here));
  if (is_seen) try {
      CheckpointConfig here = config;
      here.load = load_here;
      start = find_start(here);
    } catch (const std::exception& e) {
      preflight.problems.push_back({e.what(), "checkpoint.load", "`braid ckpt verify` shows what is intact"});
    }
  if (is_seen && !start.resumes)
    for (const WeightSource& source : weight_sources(config))
      use_inside({source.key, source.path, PathUse::MustExist}, options, uses, preflight);
  check_paths(uses, allocation, preflight);
  return is_seen ? start.words : fmt::format("resumes if '{}' has a checkpoint, which is not visible here", load);
}

// The checks before the launch of a recipe.
Preflight preflight_of(const Recipe& recipe, const std::string& recipe_path, const SlurmOptions& options,
                       const Allocation& allocation) {
  Preflight preflight;
  if (allocation.gpus_per_node > 0) {
    check_nodes(recipe.topology, workload_of(recipe), allocation, preflight);
    // Of a whole step: parameters, optimizer, activations.
    const Topology topology(recipe.topology, workload_of(recipe));
    append(preflight.problems,
           gpu_memory_problems(recipe, topology, static_cast<std::int64_t>(options.gpu_memory_gb * 1e9)));
  }
  check_paths(paths_of(options, preflight), allocation, preflight);
  for (const auto& [what, path] : {std::pair{"the recipe", recipe_path},
                                   {"braid", own_executable()},
                                   {"--log-dir", options.log_dir}})  // with the metrics, which rank 0 writes
    if (!path_inside(options, path)) preflight.problems.push_back(missing_mount(what, path));
  check_data(recipe, options, allocation, preflight);
  return preflight;
}

std::vector<std::string> literal_words_of(const std::string& text) {
  std::vector<std::string> words;
  for (const ShellCommand& command : simple_commands(text))
    for (const ShellWord& word : command.words)
      if (word.value) words.push_back(*word.value);
  return words;
}

// The sizes in a command's flags, and in the Hugging Face model that it names.
ParallelFlags flags_of(const std::vector<std::string>& words, const SlurmOptions& options) {
  constexpr std::uintmax_t kLongestConfig = 1 << 20;
  ParallelFlags flags = parallel_flags(words);
  for (const std::string& word : words) {
    const std::string path = word.substr(word.starts_with('-') ? word.find('=') + 1 : 0);
    const auto folder = path.empty() ? std::nullopt : path_on_host(options, fs::path(options.workdir) / path);
    const fs::path config = fs::path(folder.value_or("")) / "config.json";
    if (!folder || !is_file(config)) continue;
    try {
      take_model_sizes(find_small_file(config, kLongestConfig).value_or(""), flags);
    } catch (const std::runtime_error&) {  // it is another program's file
    }
  }
  return flags;
}

// The checks before the launch of a command.
Preflight preflight_of(const std::string& command_text, const SlurmOptions& options, const Allocation& allocation) {
  Preflight preflight;
  const std::vector<std::string> words = literal_words_of(command_text);
  const ParallelFlags flags = flags_of(words, options);
  const std::string program = program_name(command_text);
  if (allocation.gpus_per_node > 0) {
    const bool exports = contains(words, "export") || program.find("export") != program.npos ||
                         program.find("roundtrip") != program.npos;
    check_nodes(flags, allocation, preflight);
    check_experts(flags,
                  {options.task.empty() ? task_of(program) : *find_task(options.task), options.gpu_memory_gb, exports},
                  allocation, preflight);
  }
  check_paths(paths_of(options, preflight), allocation, preflight);
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
  if (!options.requeue.value_or(false)) return;
  if (const std::string lost = not_resumed(recipe.checkpoint); !lost.empty())
    throw ConfigError({"a requeued run would lose at each start: " + lost, "--requeue",
                       "leave these keys out; they are for one start that a person makes"});
  if (!save.empty() && !load.empty() && folder(save) == folder(load)) return;
  throw ConfigError(
      {fmt::format("a requeued run would start from {} each time, because the recipe does not {}",
                   load.empty() ? "its beginning" : "'" + load + "'", save.empty() ? "save" : "load what it saves"),
       "--requeue",
       "give --save FOLDER and --load FOLDER with the same folder; weights to begin with are given as "
       "checkpoint.init"});
}

// A working folder that only the nodes or a container have is not created here.
void make_log_folder(const SlurmOptions& options) {
  const std::string& path = options.log_dir;
  std::error_code error;
  const fs::path in_workdir = fs::path(path).lexically_relative(options.host_workdir);
  const bool below_workdir = !in_workdir.empty() && *in_workdir.begin() != "..";
  if (!can_be_seen(path) || (below_workdir && !is_there(options.host_workdir)))
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
  const std::string braid = path_inside(options, own_executable()).value_or(own_executable());
  std::vector<std::string> words = {staged ? options.stage + "/braid" : braid, "train",
                                    path_inside(options, recipe_path).value_or(recipe_path)};
  words.insert(words.end(), overrides.begin(), overrides.end());
  const std::string host_stem = log_stem(options);
  const std::string train = joined_quoted(words),
                    stem = shell_quoted(path_inside(options, host_stem).value_or(host_stem)) + "\"$SLURM_JOB_ID\"";
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
  job.first_phase = (staged ? staging(braid, options.stage) : "") +
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

constexpr const char* kTokens[] = {"HF_TOKEN", "GH_TOKEN", "WANDB_API_KEY"};

void pass_tokens(SlurmOptions& options) {
  for (const char* name : kTokens)
    if (std::getenv(name)) options.passed.push_back(name);
}

// Slurm would end a job without any message whose log is in a folder that only the container has.
void check_log_folder(const SlurmOptions& options) {
  const fs::path inside = fs::path(options.log_dir).lexically_relative(options.workdir);
  if (!options.host_workdir.empty() || inside.empty() || *inside.begin() == "..") return;
  throw ConfigError({fmt::format("'{}' is only in the container, where Slurm cannot write the log", options.log_dir),
                     "--log-dir", fmt::format("give --mount FOLDER:{}, or a folder of the host", options.workdir)});
}

void complete(LaunchSlurm& launch, const std::string& title, const Task& task) {
  SlurmOptions& options = launch.options;
  throw_if_any(validate(options));
  check_log_folder(options);
  if (options.job_name.empty()) {
    const std::string name = safe_job_name(title);
    options.job_name = name.ends_with(task.name) ? name : name + "-" + std::string(task.name);
  }
  if (options.output.empty()) options.output = options.job_name + ".sbatch";
  pass_tokens(options);
}

SlurmJob checked_recipe_job(LaunchSlurm& launch, const std::vector<std::string>& overrides) {
  const bool is_stream =
      launch.recipe_path == "-" || (fs::exists(launch.recipe_path) && !fs::is_directory(launch.recipe_path) &&
                                    is_own_descriptor(launch.recipe_path));
  if (is_stream)
    throw misuse(fmt::format("'{}' can be read only by this command, but the job's ranks read the recipe later",
                             launch.recipe_path),
                 "give the path of a file that all nodes can read");
  const std::string given = fs::absolute(launch.recipe_path).lexically_normal(),
                    path = seen_here(launch.options, given);
  const Recipe recipe = read_recipe_call(path == given ? launch.recipe_path : path, overrides).recipe;
  take_defaults(launch, recipe.cluster, Topology(recipe.topology, workload_of(recipe)).world_size());
  complete(launch, fs::path(path).stem().string(), kTasks[0]);
  const SlurmOptions& options = launch.options;
  const Allocation allocation = {*options.nodes, options.gpus_per_node};
  Preflight preflight = preflight_of(recipe, path, options, allocation);
  const std::string start = check_checkpoints(recipe, options, allocation, preflight);
  settle(std::move(preflight), options, allocation, launch.force);
  SlurmJob job = job_of_recipe(options, path, recipe, overrides);
  job.start = start;
  return job;
}

SlurmJob checked_command_job(LaunchSlurm& launch, const std::vector<std::string>& command_line) {
  const std::string& given = launch.command_file;
  const bool in_file = !given.empty(), is_named = in_file && given != "-";
  const std::string path = is_named && given.starts_with('/') ? seen_here(launch.options, given) : given;
  const std::string text = !launch.run_script.empty() ? started_command(run_script(launch.run_script))
                           : in_file                  ? read_shell_file(path, "--command-file")
                                                      : command_text(words_behind_dashes(command_line));
  take_defaults(launch, ClusterConfig{}, std::nullopt);
  // A job's text contains the name of its log, so its own name is needed first.
  const std::string program = program_name(text), title = is_named ? fs::path(path).stem().string() : program;
  const Task* task = find_task(launch.options.task);
  complete(launch, title.empty() ? "command" : title, task ? *task : task_of(program));
  const SlurmOptions& options = launch.options;
  SlurmJob job = job_of_command(options, text);
  if (is_named) {
    const fs::path file = fs::absolute(path).lexically_normal();
    job.zeroth_argument = path_inside(options, file).value_or(file);
    // BASH_SOURCE is set only in a script that is run as a file; otherwise its folder looks like the current one.
    if (text.find("BASH_SOURCE") != std::string::npos && file.parent_path() != options.host_workdir)
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
  launch.options = with_absolute_paths(std::move(launch.options), fs::current_path().string());
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
  if (!job.start.empty()) fmt::print("a start now {}\n", job.start);
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
      {"--job-name", &o.job_name, "default: <recipe or program>-<task>"},
      {"--task", &o.task, "train, inference or convert, for the check of memory (default: by the program's name)"},
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
       "shell text that one task runs first; each rank then runs it again, except what must happen once"},
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

// Says in the shell what the command expects, and which tokens are there, by their names.
std::string banner(const std::string& text, const SlurmOptions& options, const Allocation& allocation) {
  std::string lines;
  if (!text.empty())
    lines = fmt::format("echo {}\n", shell_quoted(sizes_text(flags_of(literal_words_of(text), options), allocation)));
  lines +=
      fmt::format("for name in {}; do [[ ${{!name:-}} ]] && echo \"$name is set\" || echo \"$name is not set\"; done\n",
                  fmt::join(kTokens, " "));
  return allocation.nodes > 1 || text.empty() ? lines : lines + text + "\n";
}

void interactive(Interactive session, const Call& call) {
  SlurmOptions& options = session.options;
  if (const auto keys = parse_overrides(call.arguments, call.option_names); !keys.empty())
    throw misuse(fmt::format("--{} is a recipe key, but there is no recipe", keys[0].path),
                 "give the command's options after --");
  if (!session.nodelist.empty())
    throw ConfigError({fmt::format("-w {} asks srun for nodes that the allocation may not have", session.nodelist),
                       "-w",
                       "leave it out: srun uses the nodes that salloc got. With it, Slurm says \"Requested node "
                       "configuration is not available\""});
  if (options.job_name.empty()) options.job_name = options.account.empty() ? "debug" : options.account + "-debug";
  throw_if_any(validate(options));
  options = with_absolute_paths(std::move(options), fs::current_path().string());
  pass_tokens(options);
  const std::string text = command_text(words_behind_dashes(call.command_line));
  refuse_secrets(text);
  const Allocation allocation = {*options.nodes, options.gpus_per_node};
  settle(preflight_of(text, options, allocation), options, allocation, session.force);
  fmt::print("{}", interactive_commands(options, banner(text, options, allocation)));
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
      .extras = Extras::RecipeKeysOrCommand,
      .run = [session](Call& call) { interactive(*session, call); }};
}

Command launch_command() {
  return {.name = "launch",
          .help = "Start a run on a cluster or on this machine, and monitor it",
          .subcommands = {launch_slurm_command(), launch_interactive_command(), named(kLaunchLocal),
                          launch_status_command(), launch_tail_command()}};
}

}  // namespace braid
