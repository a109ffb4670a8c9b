// braid launch slurm: writes the sbatch script of a recipe, or of a command that somebody runs on one node.
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "base/process.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "launch/rank_command.h"
#include "launch/rank_process.h"
#include "launch/shell_text.h"
#include "launch/slurm_script.h"
#include "plan/topology.h"
#include "train/recipe.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct LaunchSlurm {
  SlurmOptions options;
  std::string recipe_path, command_file;
  bool requeue = false, no_requeue = false, dry_run = false, submit = false;
};

// --- a job from a recipe
// ------------------------------------------------------------------------------------------------
struct Ranks {
  int nodes, per_node;
};

Ranks place_ranks(int ranks, const SlurmOptions& options) {
  const int gpus = options.gpus_per_node;
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw ConfigError({fmt::format("the recipe's {} ranks {}", ranks, what), "--nodes", fix});
  };
  if (!options.nodes && gpus > 0 && ranks > gpus && ranks % gpus != 0)
    refuse(fmt::format("do not fill nodes of {} GPUs", gpus), "give --nodes or another --gpus-per-node");
  const int nodes = options.nodes.value_or(gpus == 0 ? 1 : std::max(ranks / gpus, 1));
  if (ranks % nodes != 0)
    refuse(fmt::format("do not divide among {} nodes", nodes), "change --nodes, or the sizes of the modules");
  if (gpus > 0 && ranks / nodes > gpus)
    refuse(fmt::format("are {} on each of {} nodes, which have {} GPUs", ranks / nodes, nodes, gpus),
           ranks % gpus == 0 ? fmt::format("use --nodes {}", ranks / gpus) : "use more nodes");
  return {nodes, ranks / nodes};
}

// Copies braid and its libraries; glibc's own must be those of the node's kernel and loader. What is running from an
// older copy keeps it: files are replaced, not overwritten.
std::string staging(const std::string& program, const std::string& folder) {
  return fmt::format(R"sh(mkdir -p {folder}/lib
cp --update --remove-destination {program} {folder}/braid
ldd {program} | while read -r name arrow path _; do
  case $name in
    linux-vdso* | ld-linux* | */ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | \
      libutil.so.* | libresolv.so.* | libanl.so.* | libnsl.so.* | libBrokenLocale.so.* | libthread_db.so.*) continue ;;
  esac
  if [[ $arrow == '=>' && ! -f $path ]]; then echo "braid needs $name, which this node does not have" >&2 && exit 1; fi
  if [[ $arrow == '=>' ]]; then cp --update --remove-destination "$path" {folder}/lib/; fi
done
)sh",
                     fmt::arg("program", shell_quoted(program)), fmt::arg("folder", shell_quoted(folder)));
}

void check_requeue(const SlurmOptions& options, const Recipe& recipe) {
  if (!options.requeue.value_or(false) || (!recipe.checkpoint.save.empty() && !recipe.checkpoint.load.empty())) return;
  throw ConfigError({fmt::format("requeued, the run would start from its beginning: the recipe does not {}",
                                 recipe.checkpoint.save.empty() ? "save" : "load what it saves"),
                     "--requeue", "give --save FOLDER and --load FOLDER, the same one"});
}

SlurmJob job_of_recipe(const LaunchSlurm& launch, const std::vector<std::string>& overrides) {
  const SlurmOptions& options = launch.options;
  const Recipe recipe = load_recipe(launch.recipe_path, parse_overrides(overrides));
  const Topology topology(recipe.topology, workload_of(recipe));
  check_requeue(options, recipe);
  const Ranks ranks = place_ranks(topology.world_size(), options);

  const std::string braid = options.stage.empty() ? own_executable() : options.stage + "/braid";
  std::vector<std::string> words = {braid, "train", fs::absolute(launch.recipe_path).lexically_normal().string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  const std::string train = joined_quoted(words);
  const std::string metrics = recipe.log.metrics_file.empty()
                                  ? " --metrics-file=" + shell_quoted(log_stem(options)) + "\"$SLURM_JOB_ID\".jsonl"
                                  : "";
  SlurmJob job;
  job.title = fs::path(launch.recipe_path).stem().string();
  job.nodes = ranks.nodes;
  job.ranks_per_node = ranks.per_node;
  job.keeps_its_place = true;
  job.can_stop = !recipe.checkpoint.save.empty();
  job.exports = {"CUDA_DEVICE_MAX_CONNECTIONS=1", "NCCL_NVLS_ENABLE=0", "TORCH_NCCL_AVOID_RECORD_STREAMS=1",
                 "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"};
  const std::string library_path =
      options.stage.empty() ? ""
                            : fmt::format("LD_LIBRARY_PATH={}/lib\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\" ",
                                          shell_quoted(options.stage));
  // Not exported: torchrun must not load Braid's libraries.
  const std::string command = (options.stage.empty() ? "" : "env " + library_path) + train + metrics;
  job.command = options.style == "torchrun"
                    ? fmt::format("exec torchrun {} --no-python {}", torchrun_world(ranks.per_node, false), command)
                    : "exec " + command;
  job.first_phase = (options.stage.empty() ? "" : staging(own_executable(), options.stage)) +
                    "# A missing program, library or recipe shall cost one task, not all.\n" + library_path + train +
                    " --print-recipe >/dev/null\n";
  if (options.gpus_per_node > ranks.per_node)
    job.notes.push_back(fmt::format("Of the {} GPUs of a node, {} have no rank.", options.gpus_per_node,
                                    options.gpus_per_node - ranks.per_node));
  return job;
}

// --- a job from a command
// -----------------------------------------------------------------------------------------------
std::string read_all(std::istream& stream) { return {std::istreambuf_iterator<char>(stream), {}}; }

std::string command_in_file(const std::string& path) {
  if (path == "-") return read_all(std::cin);
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file.is_open() || fs::is_directory(path, ignored))
    throw ConfigError({fmt::format("cannot read '{}'", path), "--command-file", "give a file with shell text, or -"});
  return read_all(file);
}

SlurmJob make_job(const LaunchSlurm& launch, const std::vector<std::string>& overrides,
                  const std::vector<std::string>& command_line) {
  const bool has_words = contains(command_line, "--");
  const int sources =
      (launch.recipe_path.empty() ? 0 : 1) + (has_words ? 1 : 0) + (launch.command_file.empty() ? 0 : 1);
  const auto parsed = parse_overrides(overrides);
  if (sources != 1)
    throw ConfigError({sources == 0 ? "there is neither a recipe nor a command"
                                    : "of a recipe, a command behind -- and --command-file, only one can be launched",
                       "command line",
                       "braid launch slurm RECIPE ..., or braid launch slurm ... -- COMMAND, or --command-file FILE"});
  if (!launch.recipe_path.empty()) return job_of_recipe(launch, overrides);
  if (!parsed.empty())
    throw ConfigError({fmt::format("--{} is a recipe's key, but there is no recipe", parsed[0].path), "command line",
                       "options of the command stand behind --"});
  if (!launch.options.stage.empty())
    throw ConfigError({"only braid can be staged", "--stage", "copy other programs with --warm-up"});
  return job_of_command(launch.options, has_words ? command_text(words_behind_dashes(command_line))
                                                  : command_in_file(launch.command_file));
}

// What the job would be called, before it is known in full: its log's name is part of what it runs.
std::string default_title(const LaunchSlurm& launch, const std::vector<std::string>& command_line) {
  if (!launch.recipe_path.empty()) return fs::path(launch.recipe_path).stem().string();
  if (!launch.command_file.empty() && launch.command_file != "-") return fs::path(launch.command_file).stem().string();
  const auto words = words_behind_dashes(command_line);
  const std::string program = words.empty() ? "" : rank_command(command_text(words), "").program;
  return program.empty() ? "command" : program;
}

void complete(LaunchSlurm& launch, const std::vector<std::string>& command_line) {
  SlurmOptions& options = launch.options;
  if (launch.requeue || launch.no_requeue) options.requeue = launch.requeue;
  const std::vector<Problem> problems = validate(options);
  if (!problems.empty()) throw ConfigError(problems);
  const auto absolute = [](const std::string& path, const fs::path& base) {
    std::string text = (base / path).lexically_normal().string();
    if (text.size() > 1 && text.back() == '/') text.pop_back();
    return text;
  };
  options.workdir = absolute(options.workdir, fs::current_path());
  options.log_dir = absolute(options.log_dir, options.workdir);
  for (std::string* folder : {&options.cache_dir, &options.stage})
    if (!folder->empty()) *folder = absolute(*folder, options.workdir);
  if (options.job_name.empty()) {
    const std::string title = safe_job_name(default_title(launch, command_line));
    options.job_name = title.ends_with("train") ? title : title + "-train";
  }
  if (options.output.empty()) options.output = options.job_name + ".sbatch";
  for (const char* name : {"HF_TOKEN", "GH_TOKEN", "WANDB_API_KEY"})
    if (std::getenv(name)) options.passed.push_back(name);
}

// --- the file
// -----------------------------------------------------------------------------------------------------------
void refuse_foreign_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 3 && std::getline(file, line); ++i)
    if (line == kSlurmScriptMark) return;
  throw ConfigError({fmt::format("'{}' is there and was not made by braid launch slurm", path), "--output",
                     "give another name, or remove it"});
}

// Executable by its owner only, and there complete or not at all.
void write_script(const std::string& path, const std::string& text) {
  refuse_foreign_file(path);
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool closed = fd >= 0 && ::close(fd) == 0;
  if (written && closed && ::rename(temporary.c_str(), path.c_str()) == 0) return;
  ::unlink(temporary.c_str());
  throw ConfigError(
      {fmt::format("cannot write '{}'", path), "--output", "give the name of a file in a folder that is there"});
}

void make_log_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw ConfigError({fmt::format("cannot make the folder '{}': {}", path, error.message()), "--log-dir",
                       "give a folder that you can write to; without it Slurm ends the job without a word"});
}

struct Answer {
  int exit_code = 0;
  std::string text{};  // of both streams
};

Answer ask(const std::vector<std::string>& command) {
  FILE* pipe = ::popen((joined_quoted(command) + " 2>&1").c_str(), "r");
  if (!pipe) throw_errno(fmt::format("cannot run {}", command[0]));
  Answer answer;
  char buffer[4096];
  for (std::size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) answer.text.append(buffer, size);
  answer.exit_code = exit_code_of(::pclose(pipe));
  return answer;
}

// Prints where to look at the job; returns an exit code.
int submit(const SlurmOptions& options) {
  const Answer answer = ask({"sbatch", "--parsable", options.output});
  // JOB or JOB;CLUSTER, behind whatever it had to say.
  const std::size_t last = answer.text.rfind('\n', answer.text.size() - std::min<std::size_t>(answer.text.size(), 2));
  const std::size_t begin = last == std::string::npos ? 0 : last + 1;
  const std::string job_id = answer.text.substr(begin, answer.text.find_first_of(";\n", begin) - begin);
  if (answer.exit_code != 0 || !parse_int64(job_id)) {
    fmt::print(stderr, "braid: sbatch did not take {}:\n{}", options.output, answer.text);
    return 1;
  }
  fmt::print("{}submitted job {}\n  braid launch status {}\n  braid launch tail {}\n  braid doctor {}\n",
             answer.text.substr(0, begin), job_id, job_id, job_id, shell_quoted(log_stem(options) + job_id + ".log"));
  return 0;
}

int launch_slurm(LaunchSlurm launch, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& command_line) {
  complete(launch, command_line);
  SlurmJob job = make_job(launch, overrides, command_line);
  std::vector<std::string> made_by = command_line;
  made_by[0] = "braid";
  job.made_by = joined_quoted(made_by);
  const std::string script = slurm_script(launch.options, job);
  if (launch.dry_run) {
    fmt::print("{}", script);
    return 0;
  }
  write_script(launch.options.output, script);
  make_log_folder(launch.options.log_dir);
  if (launch.submit) return submit(launch.options);
  fmt::print("wrote {}: {} nodes, {} ranks\n  sbatch {}\n", launch.options.output, job.nodes,
             job.nodes * job.ranks_per_node, shell_quoted(launch.options.output));
  return 0;
}

void add_options(CLI::App& command, LaunchSlurm& launch) {
  SlurmOptions& o = launch.options;
  const auto list = [&command](const char* name, std::vector<std::string>& values, const char* help) {
    command.add_option(name, values, help)->allow_extra_args(false);
  };
  command.add_option("recipe", launch.recipe_path, "recipe file; its keys may follow, as for braid train");
  command.add_option("--command-file", launch.command_file,
                     "a file with the command as shell text; - is standard input");
  command.add_option("--nodes", o.nodes, "how many nodes (default: the recipe's ranks / GPUs per node, else 1)");
  command.add_option("--gpus-per-node", o.gpus_per_node, "GPUs, and so ranks, of a node; 0 where there are none")
      ->capture_default_str();
  command.add_option("--account", o.account, "Slurm account");
  command.add_option("--partition", o.partition, "Slurm partition");
  command.add_option("--time", o.time, "time limit, in any of Slurm's formats")->capture_default_str();
  command.add_option("--job-name", o.job_name, "default: <recipe or program>-train");
  command.add_option("--log-dir", o.log_dir, "folder of logs and metrics, which all nodes must see")
      ->capture_default_str();
  command.add_option("--workdir", o.workdir, "where ranks start (default: the current folder)");
  command.add_option("--style", o.style, "srun: one task per rank; torchrun: one torchrun per node")
      ->capture_default_str();
  command.add_option("--container", o.container, "image that ranks run in, e.g. image.sqsh (Enroot through pyxis)");
  list("--mount", o.mounts, "SRC:DST to mount in the container; may be repeated");
  command.add_option("--mpi", o.mpi, "srun's --mpi (default: pmix in a container)");
  list("--env", o.env, "NAME=VALUE for all ranks; may be repeated");
  list("--secret", o.secrets, "a variable that must be set when the job is submitted; its value is not written down");
  command.add_option("--cache-dir", o.cache_dir, "shared folder for HF_HOME, UV_CACHE_DIR and NEMO_HOME");
  command.add_option("--warm-up", o.warm_up, "shell text that one task runs first, and then every rank as a no-op");
  command.add_option("--stage", o.stage, "from a recipe: copy braid and its libraries to this shared folder first");
  command.add_flag("--requeue", launch.requeue, "near the end of its time, let the run save and queue it again");
  command.add_flag("--no-requeue", launch.no_requeue, "never queue it again, also not after a node failed")
      ->excludes("--requeue");
  command.add_option("--stop-lead", o.stop_lead_s, "seconds before the end at which the run is asked to save")
      ->capture_default_str();
  command.add_option("--stop-signal", o.stop_signal, "what the ranks get then: USR1 or TERM")->capture_default_str();
  list("--sbatch", o.sbatch, "a further option of sbatch, e.g. --sbatch --qos=high; may be repeated");
  list("--srun", o.srun, "a further option of srun; may be repeated");
  command.add_option("--output", o.output, "the script's name (default: <job name>.sbatch)");
  command.add_flag("--dry-run", launch.dry_run, "print the script, write nothing");
  command.add_flag("--submit", launch.submit, "also call sbatch")->excludes("--dry-run");
}

}  // namespace

void add_launch_slurm_command(CLI::App& launch, const std::vector<std::string>& command_line, int& exit_code) {
  auto options = std::make_shared<LaunchSlurm>();
  CLI::App* command =
      launch.add_subcommand("slurm", "Write the sbatch script of a recipe, or of any single-node command");
  add_options(*command, *options);
  command->allow_extras();
  command->footer(
      "Examples:\n"
      "  braid launch slurm recipes/nemotron-vlm-54l-mock.yaml --account A --partition batch --submit\n"
      "  braid launch slurm --nodes 4 -- torchrun --nproc_per_node=8 pretrain_gpt.py --bf16\n"
      "  braid launch slurm --nodes 4 -- 'cd src && torchrun --nproc_per_node=8 train.py \"$DATA\"'\n\n"
      "With a recipe, its keys can be set here as for braid train (see braid train --help).");
  command->callback([options, command, &command_line, &exit_code] {
    exit_code = launch_slurm(*options, command->remaining(), command_line);
  });
}

}  // namespace braid
