#include "predict/collective_time.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

bool has_dim(const Grid& grid, const std::string& dim) {
  return std::ranges::any_of(grid.dims(), [&](const Dim& d) { return d.name == dim; });
}

// The ranks that agree with `rank` in all dims except those of the key, ascending.
std::vector<int> ranks_of_group(const Module& module, const std::string& key, int rank) {
  const std::vector<std::string> dims = split(key, '-');
  const Grid& grid = has_dim(module.dense, dims.front()) ? module.dense : module.expert;
  std::vector<int> ranks = {rank};
  int stride = 1, first = rank;
  for (const Dim& dim : grid.dims()) {
    if (contains(dims, dim.name)) {
      first -= grid.coord(rank, dim.name) * stride;
      const std::size_t count = ranks.size();
      for (int i = 1; i < dim.size; ++i)
        for (std::size_t r = 0; r < count; ++r) ranks.push_back(ranks[r] + i * stride);
    }
    stride *= dim.size;
  }
  const int shift = first - rank;
  for (int& each : ranks) each += shift;
  return ranks;
}

GroupPlacement place(const std::vector<int>& ranks, int ranks_per_node) {
  std::map<int, int> by_node;
  for (const int rank : ranks) ++by_node[rank / ranks_per_node];
  GroupPlacement group = {static_cast<int>(ranks.size()), static_cast<int>(by_node.size()), ranks_per_node};
  for (const auto& [node, count] : by_node) group.per_node = std::min(group.per_node, count);
  return group;
}

struct Links {
  const GroupPlacement& group;
  const HardwareProfile& hardware;

  double inside_latency() const { return 1e-6 * hardware.inside_node.latency_us; }
  double between_latency() const { return 1e-6 * hardware.between_nodes.latency_us; }
  // The rate at which a ring or a tree moves `bytes` past each rank. Every rank of a node has its own link to other
  // nodes, so as many rings or trees run in parallel.
  double rate(double bytes) const {
    const double inside = rate_of(hardware.inside_node, bytes);
    if (group.nodes == 1) return inside;
    const double between = group.per_node * rate_of(hardware.between_nodes, bytes / group.per_node);
    return group.per_node == 1 ? between : std::min(inside, between);
  }
  // Latency of a message that passes through all ranks in turn.
  double ring_latency() const {
    return (group.nodes - 1) * between_latency() + (group.ranks - group.nodes) * inside_latency();
  }
  // Latency of a message that goes up or down a tree of nodes, with a chain of ranks in each.
  double tree_latency() const {
    return std::ceil(std::log2(group.nodes)) * between_latency() +
           std::ceil(static_cast<double>(group.ranks) / group.nodes - 1) * inside_latency();
  }
};

double all_reduce(double bytes, const Links& links) {
  const double n = links.group.ranks, rate = links.rate(bytes);
  const double ring = 2 * (links.ring_latency() + (n - 1) / n * bytes / rate);
  const double tree = 2 * (links.tree_latency() + bytes / rate);
  return std::min(ring, tree);
}

// Rows for ranks of the same node and rows for other nodes are sent at the same time.
double all_to_all(double bytes, const Links& links) {
  const auto& [n, nodes, per_node] = links.group;
  const double to_each = bytes / n;
  const double inside = (per_node - 1) * to_each / rate_of(links.hardware.inside_node, to_each);
  if (nodes == 1) return links.inside_latency() + inside;
  const double between = (n - per_node) * to_each / rate_of(links.hardware.between_nodes, to_each);
  return links.between_latency() + std::max(inside, between);
}

double seconds_of_messages(CollectiveKind kind, double bytes, const Links& links) {
  const double n = links.group.ranks;
  switch (kind) {
    case CollectiveKind::AllReduce:
      return all_reduce(bytes, links);
    case CollectiveKind::AllGather:
    case CollectiveKind::ReduceScatter:
      return links.ring_latency() + (n - 1) / n * bytes / links.rate(bytes);
    case CollectiveKind::AllToAll:
      return all_to_all(bytes, links);
    case CollectiveKind::Broadcast:
    case CollectiveKind::Reduce:
    case CollectiveKind::Exchange:
      return links.ring_latency() + bytes / links.rate(bytes);
  }
  throw_check_failed(__FILE__, __LINE__, "a kind of collective has no algorithm");
}

}  // namespace

GroupPlacement place_group(const Module& module, const std::string& key, int global_rank, int ranks_per_node) {
  return place(ranks_of_group(module, key, global_rank), ranks_per_node);
}

// The placement of groups within replicas repeats as soon as a replica begins with a node again.
GroupPlacement place_worst_group(const Module& module, const std::string& key, int global_rank, int ranks_per_node) {
  const Grid& grid = module.dense;
  const int replica = grid.size_of("tp") * grid.size_of("cp"), dp = grid.size_of("dp");
  const int first = global_rank - grid.coord(global_rank, "dp") * replica;
  GroupPlacement worst;
  for (int r = 0; r < std::min(dp, ranks_per_node / std::gcd(ranks_per_node, replica)); ++r) {
    const GroupPlacement group = place_group(module, key, first + r * replica, ranks_per_node);
    const bool is_worse = std::tuple(group.nodes, -group.per_node) > std::tuple(worst.nodes, -worst.per_node);
    if (r == 0 || is_worse) worst = group;
    if (group.ranks > ranks_per_node * replica) break;  // its replicas already begin at every position in a node
  }
  return worst;
}

GroupPlacement place_world(int world_size, int ranks_per_node) {
  const int nodes = (world_size + ranks_per_node - 1) / ranks_per_node;
  const int on_last = world_size - (nodes - 1) * ranks_per_node;
  return {world_size, nodes, on_last};
}

GroupPlacement place_pair(int global_rank, int other, int ranks_per_node) {
  if (global_rank == other) return {};
  return global_rank / ranks_per_node == other / ranks_per_node ? GroupPlacement{2, 1, 2} : GroupPlacement{2, 2, 1};
}

CollectiveKind collective_kind(const std::string& operation) {
  static const std::map<std::string, CollectiveKind> kinds = {{"all_reduce", CollectiveKind::AllReduce},
                                                              {"all_gather", CollectiveKind::AllGather},
                                                              {"reduce_scatter", CollectiveKind::ReduceScatter},
                                                              {"all_to_all", CollectiveKind::AllToAll},
                                                              {"broadcast", CollectiveKind::Broadcast},
                                                              {"reduce", CollectiveKind::Reduce},
                                                              {"exchange", CollectiveKind::Exchange}};
  const auto kind = kinds.find(operation);
  BRAID_CHECK(kind != kinds.end(), "no algorithm is known for '{}'", operation);
  return kind->second;
}

double seconds_of(CollectiveKind kind, double bytes, const GroupPlacement& group, const HardwareProfile& hardware) {
  if (group.ranks == 1 || bytes <= 0) return 0;
  return 1e-6 * hardware.collective_us + seconds_of_messages(kind, bytes, {group, hardware});
}

double seconds_of(const Collective& collective, const GroupPlacement& group, const HardwareProfile& hardware) {
  if (group.ranks == 1) return 0;
  const auto count = static_cast<double>(collective.operations);
  return count * seconds_of(collective_kind(collective.operation), static_cast<double>(collective.bytes) / count, group,
                            hardware);
}

}  // namespace braid
