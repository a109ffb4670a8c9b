// braid plan bytes: what ranks communicate in one training step of a recipe, counted on paper.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/strings.h"
#include "cli/commands.h"
#include "cli/plan_commands.h"
#include "plan/show.h"
#include "run/step_traffic.h"

namespace braid {
namespace {

struct BytesCommand {
  std::string recipe_path;
  std::optional<int> global_rank;
  bool json = false;
};

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
    for (int stage = 0; stage < stage_count(topology.module(m)); ++stage)
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

void plan_bytes(const BytesCommand& options, const std::vector<std::string>& flags) {
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

}  // namespace

void add_plan_bytes_command(CLI::App& plan) {
  auto options = std::make_shared<BytesCommand>();
  CLI::App* bytes = plan.add_subcommand("bytes", "Count what ranks communicate in one training step");
  bytes->add_option("recipe", options->recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml")->required();
  bytes->add_option("--rank", options->global_rank, "this global rank only; default: the first of each stage");
  bytes->add_flag("--json", options->json, "print JSON with exact numbers, for programs");
  bytes->allow_extras();
  bytes->footer(
      "Bytes are those of a whole tensor: what an all-reduce sums, what an all-gather produces, what a reduce-scatter "
      "takes, what a rank sends in an all-to-all. A transfer counts at both ends. Every sample is assumed to fill its "
      "sequence, with a label on every token and data.media.NAME.max_items items of size max_size for each "
      "encoder.\n\n" +
      short_overrides_help());
  bytes->callback([options, bytes] { plan_bytes(*options, bytes->remaining()); });
}

}  // namespace braid
