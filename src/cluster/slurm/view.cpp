#include "cluster/slurm/view.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/process.h"
#include "base/strings.h"
#include "plan/cluster_config.h"

namespace braid {
namespace {

std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) rows.push_back(split(line, '|'));
  return rows;
}

// The count in "gpu:8", "gpu:h100:8(S:0-1),nvme:1"; 0 if there are none.
int gpus_in(const std::string& resources) {
  int gpus = 0;
  for (const std::string& resource : split(resources, ',')) {
    const std::vector<std::string> parts = split(resource.substr(0, resource.find('(')), ':');
    if (parts[0] == "gpu") gpus += parse_int(parts.back()).value_or(0);
  }
  return gpus;
}

std::optional<std::string> answer_of(const std::vector<std::string>& command) {
  const auto answer = output_of(command);
  return answer && answer->exit_code == 0 ? std::optional(answer->out) : std::nullopt;
}

}  // namespace

std::vector<Partition> parse_partitions(const std::string& text) {
  std::vector<Partition> partitions;
  for (const auto& row : rows_of(text)) {
    if (row.size() != 5) continue;
    const bool is_default = row[0].ends_with('*');
    const std::string name = row[0].substr(0, row[0].size() - (is_default ? 1 : 0));
    // A partition with several kinds of nodes has one line for each kind.
    if (partitions.empty() || partitions.back().name != name)
      partitions.push_back(
          {.name = name, .up = row[1] == "up", .time_limit = parse_wall_time(row[2]), .is_default = is_default});
    partitions.back().nodes += parse_int(row[3]).value_or(0);
    partitions.back().gpus_per_node = std::max(partitions.back().gpus_per_node, gpus_in(row[4]));
  }
  return partitions;
}

std::vector<Association> parse_associations(const std::string& text) {
  std::vector<Association> associations;
  for (const auto& row : rows_of(text))
    if (!row[0].empty()) associations.push_back({row[0], row.size() > 1 ? row[1] : ""});
  return associations;
}

SlurmView view_slurm(const std::string& user) {
  SlurmView view;
  if (const auto text = answer_of({"sinfo", "--noheader", "--format=%P|%a|%l|%D|%G"}))
    view.partitions = parse_partitions(*text);
  if (const auto text =
          answer_of({"sacctmgr", "-nP", "show", "assoc", "where", "user=" + user, "format=account,partition"}))
    view.associations = parse_associations(*text);
  return view;
}

std::string offered(const std::vector<Partition>& partitions) {
  std::vector<std::string> texts;
  for (const Partition& partition : partitions) {
    const bool limited = partition.time_limit && *partition.time_limit != std::chrono::seconds::max();
    const std::string limit =
        limited ? ", up to " + clock_text(static_cast<double>(partition.time_limit->count())) : std::string();
    texts.push_back(fmt::format("{} ({}{} node{}{}{})", partition.name, partition.is_default ? "the default, " : "",
                                partition.nodes, partition.nodes == 1 ? "" : "s", limit,
                                partition.up ? "" : ", not up"));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace braid
