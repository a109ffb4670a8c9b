// braid plan: shows the layout, schedule, communication and memory of a recipe, without running it.
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "cli/command.h"
#include "cli/plan_options.h"
#include "cli/start.h"
#include "plan/op.h"
#include "plan/player.h"
#include "plan/schedule.h"
#include "plan/show.h"
#include "predict/memory.h"
#include "predict/plan_page.h"
#include "run/output_files.h"
#include "run/step_sizes.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

// --- braid plan memory -----------------------------------------------------------------------------------------------
struct MemoryCommand : PlanCall {
  std::optional<int> global_rank;
  bool on_cpu = false;
};

StepSizes step_of(const PlanSizes& sizes, const Recipe& recipe, const Topology& topology, int step) {
  return sizes.options.draw ? sizes.options.draw(recipe, topology, step) : full_step(recipe, topology);
}

// The step of the largest peak.
int fullest_step(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps,
                 const MemoryQuestion& question) {
  std::vector<std::int64_t> peaks;
  for (const StepSizes& step : steps)
    peaks.push_back(predict_memory(recipe, topology, {step}, question).fullest().peak);
  return static_cast<int>(std::ranges::max_element(peaks) - peaks.begin());
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

Json to_json(const RankMemory& rank, const Topology& topology) {
  const auto by_kind = [](const MemoryBytes& bytes) {
    Json json;
    for (std::size_t kind = 0; kind < bytes.size(); ++kind) json[kMemoryKindNames[kind]] = bytes[kind];
    return json;
  };
  Json modules;
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
  Rows rows;
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
  if (command.hardware.empty() && (command.nodes || command.encoder_nodes))
    throw ConfigError({fmt::format("{} was given without --hardware, which says how many GPUs a node has",
                                   command.nodes ? "--nodes" : "--encoder-nodes"),
                       "command line", "add --hardware, e.g. --hardware h100"});
  if (command.hardware.empty()) return std::nullopt;
  HardwareProfile hardware = load_hardware(command.hardware);
  if (command.on_cpu && !is_host(hardware))
    throw ConfigError({fmt::format("--cpu was given, but --hardware {} is a GPU", command.hardware), "command line",
                       "use one of them"});
  return hardware;
}

MemoryPlan memory_plan(MemoryCommand command, const std::vector<std::string>& flags) {
  Recipe recipe = read_recipe_call(command.recipe_path, flags).recipe;
  std::optional<HardwareProfile> hardware = hardware_of(command);
  std::string scaled = hardware ? scale_recipe(recipe, command, *hardware) : "";
  const MemoryQuestion question =
      hardware ? memory_question(*hardware)
               : MemoryQuestion{.on_gpu = !command.on_cpu && recipe.dist.device != DeviceChoice::Cpu};
  const std::int64_t iterations = iterations_of(length_of(recipe.train));
  command.default_steps = static_cast<int>(std::min<std::int64_t>(command.default_steps, iterations));
  PlanSizes sizes = plan_sizes(recipe, command);
  Topology topology(recipe.topology, workload_of(recipe));
  return {std::move(recipe), std::move(hardware), std::move(scaled), std::move(topology), question, std::move(sizes)};
}

void print_machine(const MemoryPlan& plan) {
  if (plan.hardware) fmt::print("hardware: {}\n", described(*plan.hardware));
  if (!plan.scaled.empty()) fmt::print("scaled: {}\n", plan.scaled);
}

std::string memory_json(const MemoryPlan& plan, const MemoryPrediction& prediction,
                        const std::vector<MemoryAdvice>& advice) {
  Json json = {{"world_size", plan.topology.world_size()},
               {"samples", plan.sizes.words},
               {"needed_bytes", device_memory(prediction, plan.topology, plan.question).needed},
               {"stages", Json::array()}};
  for (const StageRankMemory& stage : prediction.stages) {
    Json entry = {{"module", plan.topology.module(stage.stage.module).name}, {"stage", stage.stage.index}};
    entry.update(to_json(stage.rank, plan.topology));
    json["stages"].push_back(std::move(entry));
  }
  json["advice"] = Json::array();
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
  std::vector<StepSizes> steps;
  for (int step = 0; step < (plan.sizes.options.draw ? plan.sizes.options.steps : 1);
       ++step)  // full ones are all equal
    steps.push_back(step_of(plan.sizes, plan.recipe, plan.topology, step));
  const int heaviest = fullest_step(plan.recipe, plan.topology, steps, plan.question);
  if (command.global_rank) {
    check_rank(plan.topology, *command.global_rank);
    const RankMemory rank = predict_rank_memory(plan.recipe, plan.topology, {steps[static_cast<std::size_t>(heaviest)]},
                                                {*command.global_rank}, plan.question)
                                .front();
    if (command.json) return fmt::print("{}\n", to_json(rank, plan.topology).dump());
    print_machine(plan);
    return fmt::print("rank {}: {}, at its peak in {}\n{}", rank.global_rank,
                      plan.topology.coordinates_of(rank.global_rank), rank.at,
                      memory_table({{"", &rank}}, unit_for(rank.peak)));
  }
  const MemoryPrediction prediction = predict_memory(plan.recipe, plan.topology, steps, plan.question);
  const StepsOf that_step = [&](const Recipe& changed, const Topology& own) {
    return std::vector{step_of(plan.sizes, changed, own, heaviest)};
  };
  const std::vector<MemoryAdvice> advice = memory_advice(plan.recipe, prediction, that_step, plan.question);
  if (command.json) return fmt::print("{}\n", memory_json(plan, prediction, advice));
  print_memory(plan, prediction, advice);
}

Command plan_memory_command() {
  const auto o = std::make_shared<MemoryCommand>();
  o->default_steps = 16;
  return {.name = "memory",
          .help = "Count the memory that ranks need, and say what would lower it",
          .options = {plan_option("recipe", *o),
                      {"--rank", &o->global_rank, "this global rank only; default: the fullest of each stage"},
                      plan_option("--hardware", *o),
                      plan_option("--nodes", *o),
                      plan_option("--encoder-nodes", *o),
                      plan_option("--stats", *o),
                      plan_option("--steps", *o, "16, or as many as the run has"),
                      plan_option("--full", *o),
                      {"--cpu", &o->on_cpu, "on CPUs, whose operators keep other tensors than a GPU's kernels"},
                      {"--json", &o->json, "print JSON with exact numbers, for programs"}},
          .extras = Extras::RecipeKeys,
          .footer =
              "Mock samples have the sizes that they will have in the run. Without --stats, samples of a data set are "
              "taken to fill their sequences, with a label on every token and data.media.NAME.max_items items of size "
              "max_size for each encoder.\n\n",
          .run = [o](Call& call) { plan_memory(*o, call.arguments); }};
}

// --- braid plan show, schedule and bytes -----------------------------------------------------------------------------
struct ShowOptions : PlanCall {
  std::optional<int> global_rank;
  std::string svg_path;
};

void show_plan(const ShowOptions& options, const std::vector<std::string>& flags) {
  if (options.global_rank && options.json)
    throw ConfigError({"--rank and --json were both given", "command line", "use one of them; --json has every rank"});
  const Recipe recipe = read_recipe_call(options.recipe_path, flags, RecipeChecks::TopologyOnly).recipe;
  const Topology topology(recipe.topology, workload_of(recipe));
  if (options.json)
    fmt::print("{}\n", topology_json(topology));
  else if (options.global_rank)
    fmt::print("{}", show_rank(topology, *options.global_rank));
  else
    fmt::print("{}", show_topology(topology));
}

// The share of the step in which a pipeline stage computes, and how many microbatches it holds at most.
std::string show_stages(const Schedule& schedule, const Topology& topology, const Play& timeline,
                        const ScheduleOptions& options) {
  Rows rows;
  for (const Stage& stage : all_stages(topology)) {
    const auto rank = static_cast<std::size_t>(ranks_of(topology, stage).first);
    double busy = 0;
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Op& op = schedule.ranks[rank][i];
      const OpSpan& span = timeline.ranks[rank][i];
      if (op.computes() && op.stage == stage) busy += span.end - span.begin;
    }
    rows.push_back({topology.module(stage.module).name, std::to_string(stage.index),
                    fmt::format("{:.0f} %", 100 * busy / timeline.end),
                    std::to_string(max_in_flight(topology, options, stage))});
  }
  return format_table({"module", "stage", "busy", "holds at most"}, rows);
}

void plan_schedule(const ShowOptions& command, const std::vector<std::string>& flags) {
  const Recipe recipe = read_recipe_call(command.recipe_path, flags).recipe;
  if (command.svg_path != "-")
    check_outputs({{"--svg", command.svg_path, {".svg"}}}, {.path = command.recipe_path, .data = recipe.data.set});
  const Topology topology(recipe.topology, workload_of(recipe));
  const ScheduleOptions options = schedule_options_of(recipe, topology);
  const Schedule schedule = verified_schedule(topology, options);
  const std::vector<StageCosts> costs = stage_costs(topology, frozen_sets(recipe));
  const Play timeline = make_timeline(schedule, topology, costs);
  const std::string svg = command.svg_path.empty() ? "" : draw_svg(schedule, topology, timeline, costs);
  if (command.svg_path == "-") return fmt::print("{}", svg);
  fmt::print("{}, {}: every send has its receive, and no rank deadlocks\n\n{}", counted(topology.world_size(), "rank"),
             counted(options.microbatches, "microbatch"), show_stages(schedule, topology, timeline, options));
  if (command.svg_path.empty()) return;
  write_output(command.svg_path, svg);
  fmt::print("\ndrawn in {}\n", command.svg_path);
}

struct RankBytes {
  int global_rank;
  TrafficTable traffic;
  Traffic total() const {
    Traffic sum;
    for (const auto& [key, each] : traffic) sum.operations += each.operations, sum.bytes += each.bytes;
    return sum;
  }
};

// The first rank of each stage; it also leads its replica, so it takes part in everything that ranks of the stage do.
std::set<int> first_ranks(const Topology& topology) {
  std::set<int> ranks;
  for (const Stage& stage : all_stages(topology)) ranks.insert(ranks_of(topology, stage).first);
  return ranks;
}

struct BytesRow {
  std::string group, operation;
  Traffic traffic;
  std::vector<int> peers{};  // of a row that sums up transfers in one direction

  std::string name() const {
    if (peers.empty()) return group;
    return group + (peers.size() == 1 ? fmt::format("rank {}", peers[0]) : counted(std::ssize(peers), "rank"));
  }
};

// An encoder may send to many language replicas: meetings "images.embeddings 0>8" and "0>10" become one row.
std::vector<BytesRow> bytes_rows(const RankBytes& rank) {
  std::vector<BytesRow> rows;
  for (const auto& [key, traffic] : rank.traffic) {
    const std::string& meeting = key.first;
    const std::size_t blank = meeting.find(' '), arrow = meeting.find('>');
    BytesRow row = {meeting, key.second, traffic};
    if (arrow != meeting.npos) {
      const int from = parse_int(meeting.substr(blank + 1, arrow - blank - 1)).value(),
                to = parse_int(meeting.substr(arrow + 1)).value();
      row.group = meeting.substr(0, blank) + (from == rank.global_rank ? " to " : " from ");
      row.peers = {from == rank.global_rank ? to : from};
    }
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const BytesRow& r) {
      return !row.peers.empty() && r.group == row.group && r.operation == row.operation;
    });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
      continue;
    }
    same->traffic.operations += traffic.operations;
    same->traffic.bytes += traffic.bytes;
    same->peers.push_back(row.peers[0]);
  }
  return rows;
}

std::string bytes_table(const RankBytes& rank) {
  Rows table;
  std::vector<BytesRow> rows = bytes_rows(rank);
  rows.push_back({"total", "", rank.total()});
  for (const BytesRow& row : rows)
    table.push_back({row.name(), row.operation, fmt::format("{:>10}", row.traffic.operations),
                     fmt::format("{:>10}", readable_bytes(row.traffic.bytes))});
  return format_table({"group", "operation", "operations", "     bytes"}, table);
}

std::string bytes_json(const std::vector<RankBytes>& ranks, const Topology& topology) {
  Json json = {{"world_size", topology.world_size()}};
  for (const RankBytes& rank : ranks) {
    Json traffic = Json::array();
    for (const auto& [key, value] : rank.traffic)
      traffic.push_back(
          {{"group", key.first}, {"operation", key.second}, {"operations", value.operations}, {"bytes", value.bytes}});
    json["ranks"].push_back({{"global_rank", rank.global_rank},
                             {"coordinates", topology.coordinates_of(rank.global_rank)},
                             {"traffic", std::move(traffic)},
                             {"bytes", rank.total().bytes}});
  }
  return json.dump();
}

void plan_bytes(const ShowOptions& options, const std::vector<std::string>& flags) {
  const Recipe recipe = read_recipe_call(options.recipe_path, flags).recipe;
  const Topology topology(recipe.topology, workload_of(recipe));
  if (options.global_rank) check_rank(topology, *options.global_rank);
  const StepPlan plan(topology, schedule_options_of(recipe, topology));
  const StepSetup setup = step_setup(recipe);
  const StepSizes sizes = full_step(recipe, topology);
  std::vector<RankBytes> ranks;
  for (const int rank : options.global_rank ? std::set{*options.global_rank} : first_ranks(topology))
    ranks.push_back({rank, step_traffic(setup, topology, plan, sizes, sizes, rank)});
  if (options.json) return fmt::print("{}\n", bytes_json(ranks, topology));
  fmt::print("one step of {}\n", counted(topology.world_size(), "rank"));
  for (const RankBytes& rank : ranks)
    fmt::print("\nrank {}: {}\n{}", rank.global_rank, topology.coordinates_of(rank.global_rank), bytes_table(rank));
}

Command show_command() {
  const auto o = std::make_shared<ShowOptions>();
  return {.name = "show",
          .help = "Print modules, the coordinates of every rank and all process groups",
          .options = {plan_option("recipe", *o),
                      {"--rank", &o->global_rank, "show this global rank only, with all its groups"},
                      {"--json", &o->json, "print JSON, for programs"}},
          .extras = Extras::RecipeKeys,
          .run = [o](Call& call) { show_plan(*o, call.arguments); }};
}

Command schedule_command() {
  const auto o = std::make_shared<ShowOptions>();
  return {
      .name = "schedule",
      .help = "Check and draw what every rank does in one step",
      .options = {plan_option("recipe", *o),
                  {"--svg", &o->svg_path, "draw it to this file; -: standard output, without the text"}},
      .extras = Extras::RecipeKeys,
      .footer =
          "A backward is drawn twice as long as a forward. It is drawn as long as a forward if it computes no weight "
          "gradients, and a quarter as long if only the projector trains. Communication takes no time.\n\n",
      .run = [o](Call& call) { plan_schedule(*o, call.arguments); }};
}

Command bytes_command() {
  const auto o = std::make_shared<ShowOptions>();
  return {.name = "bytes",
          .help = "Count what ranks communicate in one training step",
          .options = {plan_option("recipe", *o),
                      {"--rank", &o->global_rank, "this global rank only; default: the first of each stage"},
                      {"--json", &o->json, "print JSON with exact numbers, for programs"}},
          .extras = Extras::RecipeKeys,
          .footer =
              "Bytes are those of a whole tensor: what an all-reduce sums, what an all-gather produces, what a "
              "reduce-scatter takes, what a rank sends in an all-to-all. A transfer counts at both ends. Every sample "
              "is assumed to fill its sequence, with a label on every token and data.media.NAME.max_items items of "
              "size max_size for each encoder.\n\n",
          .run = [o](Call& call) { plan_bytes(*o, call.arguments); }};
}

}  // namespace

Command plan_command() {
  return {.name = "plan",
          .help = "Show the layout, schedule and communication of a recipe, without running it",
          .subcommands = {show_command(), schedule_command(), bytes_command(), named(kPlanCalibrate),
                          plan_memory_command(), plan_search_command(), plan_simulate_command()}};
}

}  // namespace braid
