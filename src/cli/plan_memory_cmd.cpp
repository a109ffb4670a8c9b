// braid plan memory: how much memory the ranks of a recipe need, counted on paper, and what would lower it.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "base/strings.h"
#include "cli/plan_options.h"
#include "cli/recipe_call.h"
#include "plan/show.h"
#include "predict/memory.h"

namespace braid {
namespace {

struct MemoryCommand {
  std::string recipe_path;
  std::optional<int> global_rank;
  MachineCall machine;
  PlanSizesCall sizes{.default_steps = 16};
  bool json = false, on_cpu = false;
};

StepSizes step_of(const PlanSizes& sizes, const Recipe& recipe, const Topology& topology, int step) {
  return sizes.options.draw ? sizes.options.draw(recipe, topology, step) : full_step(recipe, topology);
}

std::vector<StepSizes> steps_of(const PlanSizes& sizes, const Recipe& recipe, const Topology& topology) {
  const int count = sizes.options.draw ? sizes.options.steps : 1;  // full steps are all equal
  std::vector<StepSizes> steps;
  for (int step = 0; step < count; ++step) steps.push_back(step_of(sizes, recipe, topology, step));
  return steps;
}

// The step in which a run needs most.
int fullest_step(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps,
                 const MemoryQuestion& question) {
  std::int64_t most = -1;
  int fullest = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t peak = predict_memory(recipe, topology, steps[i], question).fullest().peak;
    if (peak > most) most = peak, fullest = static_cast<int>(i);
  }
  return fullest;
}

// The unit of a table: gigabytes, or megabytes if the allocator's peak is below one.
struct MemoryUnit {
  const char* name;
  double bytes;

  std::string number(std::int64_t of) const { return fmt::format("{:.2f}", static_cast<double>(of) / bytes); }
};
MemoryUnit unit_for(std::int64_t peak) { return peak < 1'000'000'000 ? MemoryUnit{"MB", 1e6} : MemoryUnit{"GB", 1e9}; }

std::string stage_name(const Topology& topology, const Stage& stage) {
  const Module& module = topology.module(stage.module);
  return stage_count(module) == 1 ? module.name : fmt::format("{} stage {}", module.name, stage.index);
}

nlohmann::ordered_json to_json(const RankMemory& rank, const Topology& topology) {
  const auto by_kind = [](const MemoryBytes& bytes) {
    nlohmann::ordered_json json;
    for (std::size_t kind = 0; kind < bytes.size(); ++kind) json[kMemoryKindNames[kind]] = bytes[kind];
    return json;
  };
  nlohmann::ordered_json modules;
  for (const Module* module : topology.modules_of(rank.global_rank))
    modules[module->name] = by_kind(rank.modules[static_cast<std::size_t>(module - topology.modules().data())]);
  return {{"rank", rank.global_rank},
          {"bytes", by_kind(rank.all_modules())},
          {"peak_bytes", rank.peak},
          {"peak_at", rank.at},
          {"modules", std::move(modules)},
          {"outside_bytes", {{"nccl", rank.nccl}, {"context", rank.context}, {"slack", rank.slack}}},
          {"needed_bytes", rank.needed()},
          {"device_bytes", rank.device()}};
}

// A column for each of these ranks.
std::string memory_table(const std::vector<std::pair<std::string, const RankMemory*>>& ranks, const MemoryUnit& unit) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name, const auto& value_of, bool always) {
    std::vector<std::string> row = {name};
    bool any = always;
    for (const auto& [title, rank] : ranks) {
      const std::int64_t bytes = std::invoke(value_of, *rank);
      any = any || bytes > 0;
      row.push_back(fmt::format("{:>8}", bytes > 0 || always ? unit.number(bytes) : ""));
    }
    if (any) rows.push_back(std::move(row));
  };
  for (std::size_t kind = 0; kind < kMemoryKindNames.size(); ++kind) {
    const auto of_kind = [kind](const RankMemory& rank) { return rank.all_modules()[kind]; };
    add(memory_kind_text(kind), of_kind, false);
  }
  add("peak of the allocator", &RankMemory::peak, true);
  add("NCCL (estimate)", &RankMemory::nccl, false);
  add("context (estimate)", &RankMemory::context, false);
  add("needed", &RankMemory::needed, true);
  add("slack (estimate)", &RankMemory::slack, false);
  add("on the device", &RankMemory::device, true);
  std::vector<std::string> head = {unit.name};
  for (const auto& [title, rank] : ranks) head.push_back(title);
  return format_table(head, rows);
}

// What is asked, for which recipe and steps.
struct MemoryPlan {
  Recipe recipe;
  std::optional<HardwareProfile> hardware;
  std::string scaled;
  Topology topology;
  MemoryQuestion question;
  PlanSizes sizes;
};

std::optional<HardwareProfile> hardware_of(const MemoryCommand& command) {
  const MachineCall& machine = command.machine;
  if (machine.hardware.empty() && (machine.nodes || machine.encoder_nodes))
    throw ConfigError({fmt::format("{} was given without --hardware, which says how many GPUs a node has",
                                   machine.nodes ? "--nodes" : "--encoder-nodes"),
                       "command line", "add --hardware, e.g. --hardware h100"});
  if (machine.hardware.empty()) return std::nullopt;
  HardwareProfile hardware = load_hardware(machine.hardware);
  if (command.on_cpu && !is_host(hardware))
    throw ConfigError({fmt::format("--cpu was given, but --hardware {} is a GPU", machine.hardware), "command line",
                       "use one of them"});
  return hardware;
}

MemoryPlan memory_plan(const MemoryCommand& command, const std::vector<std::string>& flags) {
  Recipe recipe = read_recipe_call(command.recipe_path, flags).recipe;
  std::optional<HardwareProfile> hardware = hardware_of(command);
  std::string scaled = hardware ? scale_recipe(recipe, command.machine, *hardware) : "";
  const MemoryQuestion question =
      hardware ? memory_question(*hardware) : MemoryQuestion{.on_gpu = !command.on_cpu && recipe.dist.device != "cpu"};
  PlanSizesCall call = command.sizes;
  const std::int64_t iterations = iterations_of(length_of(recipe.train));
  call.default_steps = static_cast<int>(std::min<std::int64_t>(call.default_steps, iterations));
  PlanSizes sizes = plan_sizes(recipe, call);
  Topology topology(recipe.topology, workload_of(recipe));
  return {std::move(recipe), std::move(hardware), std::move(scaled), std::move(topology), question, std::move(sizes)};
}

void print_machine(const MemoryPlan& plan) {
  if (plan.hardware) fmt::print("hardware: {}\n", described(*plan.hardware));
  if (!plan.scaled.empty()) fmt::print("scaled: {}\n", plan.scaled);
}

void print_rank(const RankMemory& rank, const Topology& topology) {
  fmt::print("rank {}: {}, at its peak in {}\n{}", rank.global_rank, topology.coordinates_of(rank.global_rank), rank.at,
             memory_table({{"", &rank}}, unit_for(rank.peak)));
}

std::string memory_json(const MemoryPlan& plan, const MemoryPrediction& prediction,
                        const std::vector<MemoryAdvice>& advice) {
  nlohmann::ordered_json json = {{"world_size", plan.topology.world_size()},
                                 {"samples", plan.sizes.words},
                                 {"needed_bytes", device_memory(prediction, plan.topology, plan.question).needed},
                                 {"stages", nlohmann::ordered_json::array()}};
  for (const StageRankMemory& stage : prediction.stages) {
    nlohmann::ordered_json entry = {{"module", plan.topology.module(stage.stage.module).name},
                                    {"stage", stage.stage.index}};
    entry.update(to_json(stage.rank, plan.topology));
    json["stages"].push_back(std::move(entry));
  }
  json["advice"] = nlohmann::ordered_json::array();
  for (const MemoryAdvice& one : advice) json["advice"].push_back({{"change", one.change}, {"saves_bytes", one.saves}});
  if (plan.hardware) {
    json["hardware"] = plan.hardware->name;
    json["device_memory"] = to_json(device_memory(prediction, plan.topology, plan.question));
  }
  return json.dump();
}

// A rank with several stages has one column: "images + language, rank 0".
std::string stage_table(const MemoryPrediction& prediction, const Topology& topology, const MemoryUnit& unit) {
  std::vector<std::pair<std::string, const RankMemory*>> columns;
  for (const StageRankMemory& stage : prediction.stages) {
    const auto same = std::ranges::find(columns, stage.rank.global_rank,
                                        [](const auto& column) { return column.second->global_rank; });
    if (same == columns.end())
      columns.emplace_back(stage_name(topology, stage.stage), &stage.rank);
    else
      same->first += " + " + stage_name(topology, stage.stage);
  }
  for (auto& [title, rank] : columns) title += fmt::format(", rank {}", rank->global_rank);
  return memory_table(columns, unit);
}

void print_memory(const MemoryPlan& plan, const MemoryPrediction& prediction, const std::vector<MemoryAdvice>& advice) {
  const RankMemory& fullest = prediction.fullest();
  const MemoryUnit unit = unit_for(fullest.peak);
  print_machine(plan);
  fmt::print("the fullest rank of each stage, of {}; samples: {}\n\n{}", counted(plan.topology.world_size(), "rank"),
             plan.sizes.words, stage_table(prediction, plan.topology, unit));
  fmt::print("\nrank {} has its peak in {}\n", fullest.global_rank, fullest.at);
  if (plan.hardware)
    fmt::print("{}\n", described(device_memory(prediction, plan.topology, plan.question), *plan.hardware));
  else if (!plan.question.on_gpu)
    fmt::print("all ranks need {} {}\n", unit.number(device_memory(prediction, plan.topology, plan.question).needed),
               unit.name);
  for (const MemoryAdvice& one : advice) fmt::print("{} saves {} {}\n", one.change, unit.number(one.saves), unit.name);
}

void plan_memory(const MemoryCommand& command, const std::vector<std::string>& flags) {
  const MemoryPlan plan = memory_plan(command, flags);
  const std::vector<StepSizes> steps = steps_of(plan.sizes, plan.recipe, plan.topology);
  const int heaviest = fullest_step(plan.recipe, plan.topology, steps, plan.question);
  if (command.global_rank) {
    check_rank(plan.topology, *command.global_rank);
    const RankMemory rank = predict_rank_memory(plan.recipe, plan.topology, steps[static_cast<std::size_t>(heaviest)],
                                                *command.global_rank, plan.question);
    if (command.json) return fmt::print("{}\n", to_json(rank, plan.topology).dump());
    print_machine(plan);
    return print_rank(rank, plan.topology);
  }
  const MemoryPrediction prediction = predict_memory(plan.recipe, plan.topology, steps, plan.question);
  const StepsOf that_step = [&](const Recipe& changed, const Topology& own) {
    return std::vector{step_of(plan.sizes, changed, own, heaviest)};
  };
  const std::vector<MemoryAdvice> advice = memory_advice(plan.recipe, prediction, that_step, plan.question);
  if (command.json) return fmt::print("{}\n", memory_json(plan, prediction, advice));
  print_memory(plan, prediction, advice);
}

}  // namespace

Command plan_memory_command() {
  const auto o = std::make_shared<MemoryCommand>();
  return {.name = "memory",
          .help = "Count the memory that ranks need, and say what would lower it",
          .options = {recipe_option(o->recipe_path),
                      {"--rank", &o->global_rank, "this global rank only; default: the fullest of each stage"},
                      hardware_option(o->machine),
                      nodes_option(o->machine),
                      encoder_nodes_option(o->machine),
                      stats_option(o->sizes),
                      steps_option(o->sizes, "16, or as many as the run has"),
                      full_option(o->sizes),
                      {"--cpu", &o->on_cpu, "on CPUs, whose operators keep other tensors than a GPU's kernels"},
                      {"--json", &o->json, "print JSON with exact numbers, for programs"}},
          .extras = Extras::RecipeKeys,
          .footer =
              "Mock samples have the sizes that they will have in the run. Without --stats, samples of a data set are "
              "taken to fill their sequences, with a label on every token and data.media.NAME.max_items items of size "
              "max_size for each encoder.\n\n",
          .run = [o](Call& call) { plan_memory(*o, call.arguments); }};
}

}  // namespace braid
