#include "cli/start.h"

#include <fmt/format.h>

#include "base/files.h"
#include "base/strings.h"
#include "predict/memory.h"
#include "run/start_checks.h"

namespace braid {
namespace {

using Problems = std::vector<Problem>;

void append(Problems& all, Problems more) { std::move(more.begin(), more.end(), std::back_inserter(all)); }

// A process that starts the ranks sees the GPUs of all of them. A rank of another launcher may see only its own (srun
// --gpus-per-task=1); whether two ranks share a GPU is detected at the rendezvous.
Problems gpu_problems(const Recipe& recipe, int ranks, int gpus, bool sees_all) {
  if (recipe.dist.device == DeviceChoice::Cuda && gpus == 0) return {no_gpu("dist.device")};
  if (recipe.dist.backend == BackendChoice::Nccl &&
      (gpus < (sees_all ? ranks : 1) || recipe.dist.device == DeviceChoice::Cpu))
    return {{fmt::format("nccl needs {}, one for each rank, but {} {} visible", counted(ranks, "GPU"), gpus,
                         gpus == 1 ? "is" : "are"),
             "dist.backend", "use gloo or auto, or fewer ranks per host"}};
  if (recipe.dist.backend == BackendChoice::NcclShared && gpus == 0) return {no_gpu("dist.backend")};
  return {};
}

Problems path_problems(const StartRequest& request, const Recipe& recipe) {
  std::vector<WrittenPath> paths = written_paths(recipe);
  for (WrittenPath& output : written_paths(request.outputs)) paths.push_back(std::move(output));
  if (!request.log_dir.empty()) paths.push_back({"--log-dir", request.log_dir});
  Problems problems = writing_problems(paths);
  const auto is_of_save = [](const Problem& problem) { return problem.where == kSaveKey; };
  if (std::ranges::any_of(problems, is_of_save)) return problems;
  try {
    check_save_folder(recipe.checkpoint);
  } catch (const ConfigError& e) {
    append(problems, e.problems());
  }
  return problems;
}

bool are_known(const RanksHere& here, const Topology& topology) {
  return here.first >= 0 && here.first + here.count <= topology.world_size();  // else, another rank placement
}

// As comm/run_as_rank.cpp assigns them.
std::vector<std::vector<int>> ranks_by_gpu(const RanksHere& here, int gpus) {
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(gpus));
  for (int local = 0; local < here.count; ++local)
    ranks[static_cast<std::size_t>(local % gpus)].push_back(here.first + local);
  return ranks;
}

}  // namespace

std::vector<Problem> room_problems(const Recipe& recipe, const Topology& topology, const RanksHere& here,
                                   const HostRoom& room) {
  std::vector<Problem> problems = oversubscription_problems(here.count, room.host);
  if (room.gpus > 0) {
    const bool share = here.count > room.gpus && room.sees_all_gpus && are_known(here, topology);
    append(problems, gpu_memory_problems(recipe, topology, room.gpu_bytes,
                                         share ? ranks_by_gpu(here, room.gpus) : std::vector<std::vector<int>>()));
  } else if (are_known(here, topology)) {
    append(problems,
           memory_problems(needed_bytes(recipe, topology, ranks_by_gpu(here, 1)[0], {.on_gpu = false}), room.host));
  }
  return problems;
}

Problems located(Problems problems, const RecipeSource& source) {
  if (problems.empty()) return problems;
  const YamlReader reader = YamlReader::from_text(source.text, source.path, source.overrides);
  for (Problem& problem : problems) {
    if (problem.where.starts_with("--")) continue;
    std::vector<std::string> places, typed;
    for (const std::string& key : split(problem.where, ' ')) places.push_back(reader.where(key));
    std::ranges::copy_if(places, std::back_inserter(typed),
                         [](const std::string& place) { return place.starts_with("command line"); });
    problem.where = joined(typed.empty() ? places : typed, "; ");
  }
  return problems;
}

StartProblems start_problems(const StartRequest& request, const Recipe& recipe, const Topology& topology,
                             const std::optional<WorldSpec>& spec) {
  if (spec && spec->launcher == Launcher::Local) return {};
  const bool first_of_host = !spec || spec->local_rank == 0, first = !spec || spec->rank == 0;
  const RanksHere here =
      spec ? RanksHere{spec->rank - spec->local_rank, spec->local_size} : RanksHere{0, topology.world_size()};
  const int gpus = visible_gpus();
  StartProblems found = {.list = located(gpu_problems(recipe, here.count, gpus, !spec), request.source)};
  found.ranks_can_meet = found.list.empty();
  const bool on_gpus = gpus > 0 && recipe.dist.device != DeviceChoice::Cpu;
  if (first_of_host && !request.oversubscribe)
    append(found.list, room_problems(recipe, topology, here,
                                     {.host = host_capacity(),
                                      .gpus = on_gpus ? gpus : 0,
                                      .gpu_bytes = on_gpus ? gpu_memory_bytes() : 0,
                                      .sees_all_gpus = !spec}));
  if (!first) return found;
  LoadFindings load = check_load(recipe, topology, request.only_evaluates);
  append(found.list, located(std::move(load.problems), request.source));
  const std::vector<DataUse> uses = request.only_evaluates ? std::vector{DataUse::Evaluation} : data_uses(recipe);
  DataFindings data = check_data(recipe, topology, uses, load.data);
  append(found.list, located(std::move(data.problems), request.source));
  found.warnings = std::move(data.warnings);
  append(found.list, output_problems(request.outputs, {request.source.path, recipe.data.set, data.evaluated}));
  append(found.list, located(path_problems(request, recipe), request.source));
  return found;
}

void check_world(const WorldSpec& spec, const Topology& topology) {
  if (spec.size == topology.world_size()) return;
  const std::string ranks = counted(topology.world_size(), "rank");
  throw ConfigError({fmt::format("the recipe's topology has {}, but {} {} started", ranks, spec.size,
                                 spec.size == 1 ? "was" : "were"),
                     "topology", fmt::format("start {}, or change the module sizes", ranks)});
}

bool is_refused(const StartProblems& problems, const std::optional<WorldSpec>& spec) {
  if (problems.list.empty() || (spec && problems.ranks_can_meet)) return false;
  if (!spec || spec->local_rank == 0) throw ConfigError(problems.list);
  return true;
}

std::vector<std::string> rank_command(std::vector<std::string> command_line, const std::string& recipe_path,
                                      const RecipeSource& source) {
  *std::ranges::find(command_line, recipe_path) = reopenable(source.path, source.text);
  return command_line;
}

}  // namespace braid
