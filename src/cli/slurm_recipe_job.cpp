#include <algorithm>
#include <filesystem>

#include "base/process.h"
#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "launch/shell_text.h"
#include "launch/slurm_script.h"
#include "plan/topology.h"
#include "train/recipe.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path,
                       const std::vector<std::string>& overrides) {
  const Recipe recipe = load_recipe(recipe_path, parse_overrides(overrides));
  const Topology topology(recipe.topology, workload_of(recipe));
  check_requeue(options, recipe);
  const Ranks ranks = place_ranks(topology.world_size(), options);

  const std::string braid = options.stage.empty() ? own_executable() : options.stage + "/braid";
  std::vector<std::string> words = {braid, "train", fs::absolute(recipe_path).lexically_normal().string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  const std::string train = joined_quoted(words);
  const std::string metrics = recipe.log.metrics_file.empty()
                                  ? " --metrics-file=" + shell_quoted(log_stem(options)) + "\"$SLURM_JOB_ID\".jsonl"
                                  : "";
  SlurmJob job;
  job.title = fs::path(recipe_path).stem().string();
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

}  // namespace braid
