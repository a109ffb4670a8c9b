// The Slurm job of a recipe, the file of a Slurm script, and sbatch.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/process.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "cluster/megatron/shell_text.h"
#include "formats/atomic_file.h"
#include "run/recipe.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// The preflight checks whether they fill the GPUs.
int ranks_per_node(int ranks, int nodes) {
  if (ranks % nodes == 0) return ranks / nodes;
  throw ConfigError(
      {fmt::format("the recipe's {} cannot be divided evenly among {} nodes", counted(ranks, "rank"), nodes), "--nodes",
       "change --nodes, or the sizes of the modules"});
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

void refuse_foreign_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  if (!fs::is_regular_file(path, ignored))  // reading a device may block, and the script would replace it
    throw ConfigError({fmt::format("'{}' is not a plain file", path), "--output", "give another name"});
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 3 && std::getline(file, line); ++i)
    if (line == kSlurmScriptMark) return;
  throw ConfigError({fmt::format("'{}' exists and was not made by braid launch slurm", path), "--output",
                     "give another name, or remove it"});
}

// A working folder that only the nodes or a container have is not created here.
bool is_elsewhere(const SlurmOptions& options) {
  std::error_code ignored;
  const bool below_workdir = fs::path(options.log_dir).lexically_relative(options.workdir).begin()->string() != "..";
  return !can_be_seen(options.log_dir) || (below_workdir && !fs::exists(options.workdir, ignored));
}

void make_log_folder(const SlurmOptions& options) {
  const std::string& path = options.log_dir;
  if (is_elsewhere(options))
    return print_warning({fmt::format("the log folder '{}' cannot be created from here", path), "--log-dir",
                          "create it on the nodes, or give a folder they share with this machine; without it Slurm "
                          "ends the job without a message"});
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw ConfigError({fmt::format("cannot create the folder '{}': {}", path, error.message()), "--log-dir",
                       "give a folder that you can write to; without it Slurm ends the job without a message"});
}

}  // namespace

SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path, const Recipe& recipe,
                       const std::vector<std::string>& overrides) {
  check_requeue(options, recipe);
  const int world_size = Topology(recipe.topology, workload_of(recipe)).world_size();

  const std::string braid = options.stage.empty() ? own_executable() : options.stage + "/braid";
  std::vector<std::string> words = {braid, "train", fs::absolute(recipe_path).lexically_normal().string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  const std::string train = joined_quoted(words);
  const std::string metrics = recipe.log.metrics_file.empty()
                                  ? " --metrics-file=" + shell_quoted(log_stem(options)) + "\"$SLURM_JOB_ID\".jsonl"
                                  : "";
  SlurmJob job;
  job.title = fs::path(recipe_path).stem().string();
  job.nodes = *options.nodes;
  job.ranks_per_node = ranks_per_node(world_size, job.nodes);
  job.is_braid = true;
  job.can_stop = !recipe.checkpoint.save.empty();
  job.exports = exports_for_gpus();
  const std::string library_path =
      options.stage.empty() ? ""
                            : fmt::format("LD_LIBRARY_PATH={}/lib\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\" ",
                                          shell_quoted(options.stage));
  // Not exported: torchrun must not load Braid's libraries.
  const std::string command = (options.stage.empty() ? "" : "env " + library_path) + train + metrics;
  job.command = options.style == "torchrun"
                    ? fmt::format("exec torchrun {} --no-python {}", torchrun_world(job.ranks_per_node, false), command)
                    : "exec " + command;
  job.first_phase = (options.stage.empty() ? "" : staging(own_executable(), options.stage)) +
                    "# Finds a missing program, library or recipe with one task, before all ranks start.\n" +
                    library_path + train + " --print-recipe >" + shell_quoted(log_stem(options)) +
                    "\"$SLURM_JOB_ID\".yaml\n";
  const int unused = options.gpus_per_node - job.ranks_per_node;
  if (unused > 0)
    job.notes.push_back(fmt::format("Of the {} GPUs per node, {} {} no rank.", options.gpus_per_node, unused,
                                    unused == 1 ? "has" : "have"));
  return job;
}

std::string called_as() {
  const std::string name = program_invocation_name;
  return name.find('/') == name.npos ? "braid" : shell_quoted(name);
}

void write_script(const SlurmOptions& options, const std::string& text) {
  const std::string& path = options.output;
  refuse_foreign_file(path);
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

}  // namespace braid
