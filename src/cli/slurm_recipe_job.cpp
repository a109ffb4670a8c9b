// The Slurm job of a recipe.
#include <filesystem>

#include "base/process.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "cli/tensor_commands.h"
#include "cluster/megatron/shell_text.h"
#include "cluster/slurm/script.h"
#include "cluster/slurm/step.h"
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

}  // namespace braid
