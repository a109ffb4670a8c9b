// braid plan: shows the layout, schedule and communication of a recipe, without running it.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include "base/strings.h"
#include "cli/commands.h"
#include "cli/plan_options.h"
#include "cli/recipe_call.h"
#include "plan/frozen.h"
#include "plan/schedule.h"
#include "plan/show.h"
#include "run/output_files.h"
#include "run/step_sizes.h"

namespace braid {
namespace {

struct ShowOptions {
  std::string recipe_path;
  std::optional<int> global_rank;
  bool json = false;
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

struct ScheduleCommand {
  std::string recipe_path, svg_path;
};

// The share of the step in which a pipeline stage computes, and how many microbatches it holds at most.
std::string show_stages(const Schedule& schedule, const Topology& topology, const Play& timeline,
                        const ScheduleOptions& options) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t m = 0; m < topology.modules().size(); ++m) {
    const Module& module = topology.modules()[m];
    for (int index = 0; index < stage_count(module); ++index) {
      const Stage stage = {static_cast<int>(m), index};
      const auto rank = static_cast<std::size_t>(ranks_of(topology, stage).first);
      double busy = 0;
      for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        const Op& op = schedule.ranks[rank][i];
        const OpSpan& span = timeline.ranks[rank][i];
        if (op.computes() && op.stage == stage) busy += span.end - span.begin;
      }
      rows.push_back({module.name, std::to_string(index), fmt::format("{:.0f} %", 100 * busy / timeline.end),
                      std::to_string(max_in_flight(topology, options, stage))});
    }
  }
  return format_table({"module", "stage", "busy", "holds at most"}, rows);
}

void plan_schedule(const ScheduleCommand& command, const std::vector<std::string>& flags) {
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
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& [key, traffic] : this->traffic) sum += traffic.bytes;
    return sum;
  }
};

// The first rank of each stage; it also leads its replica, so it takes part in everything that ranks of the stage do.
std::vector<int> first_ranks(const Topology& topology) {
  std::vector<int> ranks;
  for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m)
    for (int stage = 0; stage < stage_count(topology.modules()[static_cast<std::size_t>(m)]); ++stage)
      ranks.push_back(ranks_of(topology, {m, stage}).first);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<RankBytes> count_bytes(const Recipe& recipe, const Topology& topology, const std::vector<int>& ranks) {
  const StepPlan plan(topology, schedule_options_of(recipe, topology));
  const StepSetup setup = step_setup(recipe);
  const StepSizes sizes = full_step(recipe, topology);
  std::vector<RankBytes> all;
  for (const int rank : ranks) all.push_back({rank, step_traffic(setup, topology, plan, sizes, sizes, rank)});
  return all;
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
  std::vector<std::vector<std::string>> table;
  const auto add = [&](const std::string& name, const std::string& operation, const Traffic& traffic) {
    table.push_back({name, operation, fmt::format("{:>10}", traffic.operations),
                     fmt::format("{:>10}", readable_bytes(traffic.bytes))});
  };
  std::int64_t operations = 0;
  for (const BytesRow& row : bytes_rows(rank)) {
    add(row.name(), row.operation, row.traffic);
    operations += row.traffic.operations;
  }
  add("total", "", {operations, rank.total()});
  return format_table({"group", "operation", "operations", "     bytes"}, table);
}

std::string bytes_json(const std::vector<RankBytes>& ranks, const Topology& topology) {
  nlohmann::ordered_json json = {{"world_size", topology.world_size()}};
  for (const RankBytes& rank : ranks) {
    nlohmann::ordered_json traffic = nlohmann::ordered_json::array();
    for (const auto& [key, value] : rank.traffic)
      traffic.push_back(
          {{"group", key.first}, {"operation", key.second}, {"operations", value.operations}, {"bytes", value.bytes}});
    json["ranks"].push_back({{"global_rank", rank.global_rank},
                             {"coordinates", topology.coordinates_of(rank.global_rank)},
                             {"traffic", std::move(traffic)},
                             {"bytes", rank.total()}});
  }
  return json.dump();
}

void plan_bytes(const ShowOptions& options, const std::vector<std::string>& flags) {
  const Recipe recipe = read_recipe_call(options.recipe_path, flags).recipe;
  const Topology topology(recipe.topology, workload_of(recipe));
  if (options.global_rank) check_rank(topology, *options.global_rank);
  const std::vector<RankBytes> ranks = count_bytes(
      recipe, topology, options.global_rank ? std::vector<int>{*options.global_rank} : first_ranks(topology));
  if (options.json) return fmt::print("{}\n", bytes_json(ranks, topology));
  fmt::print("one step of {}\n", counted(topology.world_size(), "rank"));
  for (const RankBytes& rank : ranks)
    fmt::print("\nrank {}: {}\n{}", rank.global_rank, topology.coordinates_of(rank.global_rank), bytes_table(rank));
}

Command show_command() {
  const auto o = std::make_shared<ShowOptions>();
  return {.name = "show",
          .help = "Print modules, the coordinates of every rank and all process groups",
          .options = {recipe_option(o->recipe_path),
                      {"--rank", &o->global_rank, "show this global rank only, with all its groups"},
                      {"--json", &o->json, "print JSON, for programs"}},
          .extras = Extras::RecipeKeys,
          .run = [o](Call& call) { show_plan(*o, call.arguments); }};
}

Command schedule_command() {
  const auto o = std::make_shared<ScheduleCommand>();
  return {
      .name = "schedule",
      .help = "Check and draw what every rank does in one step",
      .options = {recipe_option(o->recipe_path),
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
          .options = {recipe_option(o->recipe_path),
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
