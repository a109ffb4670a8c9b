#include "plan/show.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/strings.h"
#include "plan/channels.h"

namespace braid {
namespace {

using Row = std::vector<std::string>;
using Json = nlohmann::ordered_json;  // keeps dims in order

constexpr int kRanksInFull = 32;  // a module with more ranks shows its first and last kRanksAtEnds
constexpr int kRanksAtEnds = 4;
constexpr std::size_t kGroupsShown = 4;  // of one name
constexpr std::size_t kRunsInFull =
    8;  // of consecutive ranks; a group with more shows the first kRunsAtFront and the last
constexpr std::size_t kRunsAtFront = 3;

std::string kind_of(const Module& module) { return module.is_encoder ? "encoder" : "language"; }

void append_numbers(Row& row, const std::vector<int>& numbers) {
  for (int number : numbers) row.push_back(fmt::format("{}", number));
}

std::vector<int> sizes_of(const Grid& grid) {
  std::vector<int> sizes;
  for (const Dim& dim : grid.dims()) sizes.push_back(dim.size);
  return sizes;
}

// The header of a table that shows a module's dense and expert views side by side, after `first` columns.
Row header_of_views(Row first, const Module& module) {
  for (const Grid* view : {&module.dense, &module.expert})
    for (const Dim& dim : view->dims()) first.push_back(dim.name);
  first.pop_back();  // pp is the same in both views
  return first;
}

std::string table_of_modules(const Topology& topology) {
  std::vector<Row> rows;
  for (const Module& module : topology.modules()) {
    Row& row = rows.emplace_back(Row{module.name, kind_of(module), module.dense.span()});
    append_numbers(row, sizes_of(module.dense));
    append_numbers(row, sizes_of(module.expert));
    row.pop_back();
    if (topology.interleaves()) append_numbers(row, {module.vpp});
  }
  Row header = header_of_views({"module", "kind", "ranks"}, topology.modules()[0]);
  if (topology.interleaves()) header.push_back("vpp");
  return format_table(header, rows);
}

Row row_of_rank(const Module& module, int global_rank) {
  Row row = {fmt::format("{}", global_rank), module.name};
  append_numbers(row, module.dense.coords(global_rank));
  append_numbers(row, module.expert.coords(global_rank));
  row.pop_back();
  return row;
}

std::string table_of_ranks(const Topology& topology) {
  std::vector<Row> rows;
  for (const Module& module : topology.modules()) {
    const int begin = module.dense.rank_offset(), end = module.dense.end();
    const bool shorten = end - begin > kRanksInFull;
    for (int rank = begin; rank < end; ++rank) {
      if (!shorten || rank < begin + kRanksAtEnds || rank >= end - kRanksAtEnds)
        rows.push_back(row_of_rank(module, rank));
      else if (rank == begin + kRanksAtEnds)
        rows.push_back({"...", module.name});
    }
  }
  return format_table(header_of_views({"global rank", "module"}, topology.modules()[0]), rows);
}

std::string brief(const std::vector<int>& ranks) {
  std::vector<std::string> runs = split(fold_ranks(ranks), ',');
  if (runs.size() > kRunsInFull) {
    runs[kRunsAtFront] = "..";
    runs.erase(runs.begin() + kRunsAtFront + 1, runs.end() - 1);
  }
  return fmt::format("[{}]", joined(runs, ","));
}

std::string table_of_groups(const std::vector<GroupSpec>& groups) {
  std::vector<Row> rows;
  for (std::size_t first = 0, last = 0; first < groups.size(); first = last) {
    std::vector<std::string> members;
    for (; last < groups.size() && groups[last].name == groups[first].name; ++last)
      if (last - first < kGroupsShown) members.push_back(brief(groups[last].ranks));
    if (last - first > kGroupsShown) members.push_back("...");
    rows.push_back({groups[first].name, fmt::format("{}", last - first), fmt::format("{}", groups[first].ranks.size()),
                    joined(members, " ")});
  }
  return format_table({"group", "count", "size", "ranks"}, rows);
}

Json named_values(const Grid& grid, const std::vector<int>& values) {
  Json json;
  for (std::size_t i = 0; i < values.size(); ++i) json[grid.dims()[i].name] = values[i];
  return json;
}

Json json_of(const Module& module) {
  Json json = {{"name", module.name},
               {"kind", kind_of(module)},
               {"rank_offset", module.dense.rank_offset()},
               {"dense", named_values(module.dense, sizes_of(module.dense))},
               {"expert", named_values(module.expert, sizes_of(module.expert))},
               {"vpp", module.vpp}};
  for (int rank = module.dense.rank_offset(); rank < module.dense.end(); ++rank)
    json["ranks"].push_back({{"global_rank", rank},
                             {"dense", named_values(module.dense, module.dense.coords(rank))},
                             {"expert", named_values(module.expert, module.expert.coords(rank))}});
  return json;
}

Json json_of(const GroupSpec& group) {
  const std::size_t dot = group.name.find('.');
  return {{"module", group.name.substr(0, dot)}, {"key", group.name.substr(dot + 1)}, {"ranks", group.ranks}};
}

}  // namespace

std::string topology_line(const Topology& topology) {
  std::vector<std::string> modules;
  for (const Module& module : topology.modules()) {
    std::vector<std::string> sizes;
    for (const Dim& dim : module.dense.dims())
      if (dim.size > 1) sizes.push_back(fmt::format("{} {}", dim.name, dim.size));
    if (module.vpp > 1) sizes.push_back(fmt::format("vpp {}", module.vpp));
    modules.push_back(fmt::format("{} on {} ({})", module.name, module.dense.span(),
                                  sizes.empty() ? "not split" : joined(sizes, ", ")));
  }
  return joined(modules, ", ");
}

std::string show_topology(const Topology& topology) {
  std::string text =
      fmt::format("world of {}, {}{}\n\n{}\n{}\ngroups in creation order\n{}", counted(topology.world_size(), "rank"),
                  counted(std::ssize(topology.modules()), "module"), topology.colocated() ? ", colocated" : "",
                  table_of_modules(topology), table_of_ranks(topology), table_of_groups(topology.groups()));
  const std::vector<GroupSpec> channels = make_channel_groups(topology);
  if (channels.empty()) return text;
  return text + "\nchannels from stage to stage, created after them\n" + table_of_groups(channels);
}

void check_rank(const Topology& topology, int global_rank) {
  if (global_rank < 0 || global_rank >= topology.world_size())
    throw ConfigError({fmt::format("rank {} is out of range: the world has {} (0-{})", global_rank,
                                   counted(topology.world_size(), "rank"), topology.world_size() - 1),
                       "", fmt::format("give a rank from 0 to {}", topology.world_size() - 1)});
}

std::string show_rank(const Topology& topology, int global_rank) {
  check_rank(topology, global_rank);
  std::vector<Row> coordinates, groups;
  for (const Module* module : topology.modules_of(global_rank)) {
    coordinates.push_back({module->name, "dense", module->dense.coordinates_of(global_rank)});
    coordinates.push_back({module->name, "expert", module->expert.coordinates_of(global_rank)});
  }
  std::vector<GroupSpec> specs = topology.groups();
  for (GroupSpec& channel : make_channel_groups(topology)) specs.push_back(std::move(channel));
  for (const auto& [name, ranks, on_host, connected] : specs) {
    const auto self = std::lower_bound(ranks.begin(), ranks.end(), global_rank);
    if (self == ranks.end() || *self != global_rank) continue;
    groups.push_back(
        {name, fmt::format("{}", self - ranks.begin()), fmt::format("{}", ranks.size()), fold_ranks(ranks)});
  }
  return fmt::format("global rank {} of {}\n\n{}\n{}", global_rank, topology.world_size(),
                     format_table({"module", "view", "coordinates"}, coordinates),
                     format_table({"group", "index", "size", "ranks"}, groups));
}

std::string topology_json(const Topology& topology) {
  Json json = {{"world_size", topology.world_size()}, {"colocated", topology.colocated()}};
  for (const Module& module : topology.modules()) json["modules"].push_back(json_of(module));
  for (const GroupSpec& group : topology.groups()) json["groups"].push_back(json_of(group));
  json["channels"] = Json::array();
  for (const GroupSpec& channel : make_channel_groups(topology)) json["channels"].push_back(json_of(channel));
  return json.dump();
}

}  // namespace braid
