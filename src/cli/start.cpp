#include "cli/start.h"
#include <unistd.h>
#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "comm/gpus.h"
#include "predict/memory.h"
#include "run/start_checks.h"

namespace braid {
namespace {

bool are_known(const RanksHere& here, const Topology& topology) {
  return here.first >= 0 && here.first + here.count <= topology.world_size();  // else, another rank placement
}

// As comm/run_as_rank.cpp assigns them.
std::vector<std::vector<int>> ranks_by_gpu(const RanksHere& here, int gpus) {
  std::vector<std::vector<int>> ranks(gpus);
  for (int local = 0; local < here.count; ++local) ranks[local % gpus].push_back(here.first + local);
  return ranks;
}

}  // namespace

Problems room_problems(const Recipe& recipe, const Topology& topology, const RanksHere& here, const HostRoom& room) {
  Problems problems = oversubscription_problems(here.count, room.host);
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

namespace {

// --- What is checked before a run starts.

// A run that is about to start. A later check may use what an earlier one has found.
struct Start {
  const StartRequest& request;
  const Recipe& recipe;
  const Topology& topology;
  bool starts_all_ranks;
  RanksHere here;
  int gpus;
  LoadFindings load{};
  DataFindings data{};
};

// A process that starts the ranks sees the GPUs of all of them. A rank of another launcher may see only its own (srun
// --gpus-per-task=1); whether two ranks share a GPU is detected at the rendezvous.
Problems check_gpus(Start& start) {
  const CommConfig& dist = start.recipe.dist;
  const int gpus = start.gpus;
  if (dist.device == DeviceChoice::Cuda && gpus == 0) return {no_gpu("dist.device")};
  if (dist.backend == BackendChoice::Nccl &&
      (gpus < (start.starts_all_ranks ? start.here.count : 1) || dist.device == DeviceChoice::Cpu))
    return {{fmt::format("nccl needs {}, one for each rank, but {} {} visible", counted(start.here.count, "GPU"), gpus,
                         gpus == 1 ? "is" : "are"),
             "dist.backend", "use gloo or auto, or fewer ranks per host"}};
  if (dist.backend == BackendChoice::NcclShared && gpus == 0) return {no_gpu("dist.backend")};
  return {};
}

Problems check_room(Start& start) {
  if (start.request.oversubscribe) return {};
  const bool on_gpus = start.gpus > 0 && start.recipe.dist.device != DeviceChoice::Cpu;
  return room_problems(start.recipe, start.topology, start.here,
                       {.host = host_capacity(),
                        .gpus = on_gpus ? start.gpus : 0,
                        .gpu_bytes = on_gpus ? gpu_memory_bytes() : 0,
                        .sees_all_gpus = start.starts_all_ranks});
}

Problems check_checkpoint(Start& start) {
  start.load = check_load(start.recipe, start.topology, start.request.only_evaluates);
  return std::move(start.load.problems);
}

Problems check_data_set(Start& start) {
  const std::vector<DataUse> uses =
      start.request.only_evaluates ? std::vector{DataUse::Evaluation} : data_uses(start.recipe);
  start.data = check_data(start.recipe, start.topology, uses, start.load.data);
  return std::move(start.data.problems);
}

Problems check_output_names(Start& start) {
  return output_problems(start.request.outputs,
                         {start.request.source.path, start.recipe.data.set, start.data.evaluated});
}

Problems check_output_paths(Start& start) {
  std::vector<WrittenPath> paths = written_paths(start.recipe);
  std::ranges::move(written_paths(start.request.outputs), std::back_inserter(paths));
  if (!start.request.log_dir.empty()) paths.push_back({"--log-dir", start.request.log_dir});
  Problems problems = writing_problems(paths);
  if (std::ranges::find(problems, kSaveKey, &Problem::where) != problems.end()) return problems;
  try {
    check_save_folder(start.recipe.checkpoint);
  } catch (const ConfigError& e) {
    append(problems, e.problems());
  }
  return problems;
}

enum class On { EachRank, EachHost, OneRank };

struct StartCheck {
  On on;
  Problems (*find)(Start& start);
  bool names_keys = true;  // of the recipe, which the message replaces by their places
};

// Beside these, every process checks the recipe itself: validate() in run/recipe.cpp.
constexpr StartCheck kStartChecks[] = {
    {On::EachRank, check_gpus},                        // visible GPUs are too few for the device and the backend
    {On::EachHost, check_room, /*names_keys=*/false},  // cores or memory are too small for the ranks of a host
    {On::OneRank, check_checkpoint},    // the checkpoint to load is missing, damaged, or of another model or schedule
    {On::OneRank, check_data_set},      // data or tokenizer are unreadable, do not fit the model, or are too few
    {On::OneRank, check_output_names},  // two outputs, or an output and an input, are one file
    {On::OneRank, check_output_paths},  // a file or folder cannot be written, or belongs to another run
};

}  // namespace

StartProblems start_problems(const StartRequest& request, const Recipe& recipe, const Topology& topology,
                             const std::optional<WorldSpec>& spec) {
  if (spec && spec->launcher == Launcher::Local) return {};
  Start start = {
      .request = request,
      .recipe = recipe,
      .topology = topology,
      .starts_all_ranks = !spec,
      .here = spec ? RanksHere{spec->rank - spec->local_rank, spec->local_size} : RanksHere{0, topology.world_size()},
      .gpus = visible_gpus()};
  StartProblems found;
  for (const auto& [on, find, names_keys] : kStartChecks) {
    if (spec && ((on == On::EachHost && spec->local_rank != 0) || (on == On::OneRank && spec->rank != 0))) continue;
    Problems problems = find(start);
    append(found.list, names_keys ? located(std::move(problems), request.source) : std::move(problems));
    if (on == On::EachRank) found.ranks_can_meet = found.list.empty();
  }
  found.warnings = std::move(start.data.warnings);
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
  const std::string program = (std::filesystem::path(own_executable()).parent_path() / kTensorProgram).string();
  if (!is_file(program) || ::access(program.c_str(), X_OK) != 0)
    throw ConfigError({fmt::format("'{}', which runs the ranks, is not a program", program), "the installation",
                       fmt::format("keep {} beside braid; `./dev build` builds both", kTensorProgram)});
  *std::ranges::find(command_line, recipe_path) = reopenable(source.path, source.text);
  return command_line;
}

}  // namespace braid
