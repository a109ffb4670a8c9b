#include "predict/op_time.h"

namespace braid {
namespace {

// --- collectives

struct Links {
  const GroupPlacement& group;
  const HardwareProfile& hardware;

  double inside_latency() const { return 1e-6 * hardware.inside_node.latency_us; }
  double between_latency() const { return 1e-6 * hardware.between_nodes.latency_us; }
  // The rate at which a ring or a tree moves `bytes` past each rank. As many of them run as a node has ranks, since
  // each rank has its own link to other nodes.
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

// Rows for ranks of the same node and rows for other nodes are sent at the same time.
double all_to_all(double bytes, const Links& links) {
  const auto& [n, nodes, per_node] = links.group;
  const double to_each = bytes / n;
  const double inside = (per_node - 1) * to_each / rate_of(links.hardware.inside_node, to_each);
  if (nodes == 1) return links.inside_latency() + inside;
  const double between = (n - per_node) * to_each / rate_of(links.hardware.between_nodes, to_each);
  return links.between_latency() + std::max(inside, between);
}

double seconds_of_messages(const std::string& operation, double bytes, const Links& links) {
  if (operation == "all_to_all") return all_to_all(bytes, links);
  const double n = links.group.ranks, rate = links.rate(bytes);
  const double ring = links.ring_latency() + (n - 1) / n * bytes / rate;
  if (operation == "all_gather" || operation == "reduce_scatter") return ring;
  if (operation == "all_reduce") return std::min(2 * ring, 2 * (links.tree_latency() + bytes / rate));
  BRAID_CHECK(operation == "broadcast" || operation == "reduce" || operation == "exchange",
              "no algorithm is known for '{}'", operation);
  return links.ring_latency() + bytes / rate;
}

// --- operators

// Averages times per operation (or byte) over the measured sizes, weighted by the inverse fourth power of the distance
// between the logarithms of the sizes. The result is exact at a measured size and between its neighbours elsewhere.
// Times rather than rates: a size may have been measured as a forward and as a backward, and both will run.
double giga_per_s(const Speed& speed, const std::array<double, 3>& size) {
  const std::array<double, 3> at = {std::log2(size[0]), std::log2(size[1]), std::log2(size[2])};
  double weights = 0, times = 0;
  for (const Rate& rate : speed.rates) {
    double squares = 1e-6;  // not zero at a measured size
    for (std::size_t i = 0; i < at.size(); ++i) squares += (at[i] - rate.log2_size[i]) * (at[i] - rate.log2_size[i]);
    const double weight = 1 / (squares * squares);
    weights += weight;
    times += weight / rate.giga_per_s;
  }
  return weights / times;
}

CommKind kind_of(const Collective& collective) { return kind_of(CommKey{collective.group, collective.operation}); }

}  // namespace

GroupPlacement place_group(const Module& module, const std::string& key, int rank, int ranks_per_node) {
  const std::vector<std::string> varied = split(key, '-');
  const bool is_dense = std::ranges::count(module.dense.dims(), varied.front(), &Dim::name) > 0;
  const Grid& grid = is_dense ? module.dense : module.expert;
  std::vector<int> ranks = {rank};
  int stride = 1;
  for (const Dim& dim : grid.dims()) {
    if (contains(varied, dim.name)) {
      const int own = grid.coord(rank, dim.name);
      const std::size_t count = ranks.size();
      for (int i = 0; i < dim.size; ++i)
        for (std::size_t r = 0; i != own && r < count; ++r) ranks.push_back(ranks[r] + (i - own) * stride);
    }
    stride *= dim.size;
  }
  std::map<int, int> by_node;
  for (const int each : ranks) ++by_node[each / ranks_per_node];
  GroupPlacement group = {static_cast<int>(ranks.size()), static_cast<int>(by_node.size()), ranks_per_node};
  for (const auto& [node, count] : by_node) group.per_node = std::min(group.per_node, count);
  return group;
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
  return {world_size, nodes, world_size - (nodes - 1) * ranks_per_node};
}

GroupPlacement place_pair(int global_rank, int other, int ranks_per_node) {
  if (global_rank == other) return {};
  return global_rank / ranks_per_node == other / ranks_per_node ? GroupPlacement{2, 1, 2} : GroupPlacement{2, 2, 1};
}

double seconds_of(const std::string& operation, double bytes, const GroupPlacement& group,
                  const HardwareProfile& hardware) {
  if (group.ranks == 1 || bytes <= 0) return 0;
  return 1e-6 * hardware.collective_us + seconds_of_messages(operation, bytes, {group, hardware});
}

double seconds_of(const Collective& collective, const GroupPlacement& group, const HardwareProfile& hardware) {
  const auto count = static_cast<double>(collective.operations);
  return count * seconds_of(collective.operation, static_cast<double>(collective.bytes) / count, group, hardware);
}

double seconds_of(const Work& work, const HardwareProfile& hardware) {
  if (work.amount <= 0) return 0;
  const Speed& speed = speed_of(hardware, work.op);
  return work.count * (speed.latency_us * 1e-6 + work.amount / (giga_per_s(speed, work.size) * 1e9));
}

double seconds_of(const Works& works, const HardwareProfile& hardware) {
  double device = 0, host = 0;
  for (const Work& each : works) {
    if (each.when == When::FirstMicrobatch) continue;
    device += seconds_of(each, hardware);
    host += each.count * each.launches * hardware.host_us * 1e-6;
  }
  return is_host(hardware) ? device + host : std::max(device, host);
}

void OpTime::add(const OpTime& other, double weight) {
  compute += other.compute * weight;
  for (std::size_t kind = 0; kind < kCommKinds; ++kind) exposed[kind] += other.exposed[kind] * weight;
}

double GroupTimes::seconds(const Collective& collective) {
  const auto [found, is_new] = placements_.try_emplace(collective.group);
  if (is_new) found->second = place_worst_group(module_, collective.group, rank_, hardware_.ranks_per_node);
  return seconds_of(collective, found->second, hardware_);
}

OpTime GroupTimes::seconds(const Collectives& collectives) {
  OpTime time;
  for (const Collective& collective : collectives) time[kind_of(collective)] += seconds(collective);
  return time;
}

OpTime layer_time(const Works& works, const Collectives& collectives, RowsTravel travel, GroupTimes& groups,
                  const HardwareProfile& hardware) {
  OpTime time = {.compute = seconds_of(works, hardware)};
  double products = 0, beside_experts = 0;
  for (const Work& each : works) {
    if (counts_bytes(each.op) && !each.beside_experts) continue;
    const double seconds = seconds_of(each, hardware);
    if (!counts_bytes(each.op)) products += seconds;
    if (each.beside_experts) beside_experts += seconds;
  }
  double rows = 0, pieces = 1;
  for (const Collective& collective : collectives) {
    const double seconds = groups.seconds(collective), operations = static_cast<double>(collective.operations);
    if (collective.group == "ep" && collective.operation == "all_to_all") {
      rows += seconds;
      pieces = std::max(pieces, operations);
      continue;
    }
    const double hidden = std::min((collective.beside ? 1 : 1 - 1 / operations) * seconds, products);
    products -= hidden;
    time[kind_of(collective)] += seconds - hidden;
  }
  // Half of the time for rows is spent on sending them to the experts.
  const double beside_shared = travel == RowsTravel::BesideSharedExpert ? std::min(rows / 2, beside_experts) : 0;
  const double beside_others =
      std::min((rows - beside_shared) * (1 - 1 / pieces), std::max(0.0, products - beside_shared));
  time[CommKind::Expert] += rows - beside_shared - beside_others;
  return time;
}

ForwardBackward layer_times(const PaperLayer& layer, const LayerOptions& options, bool is_first, GroupTimes& groups,
                            const HardwareProfile& hardware) {
  // With recomputed experts, rows are sent again in backward and cannot hide behind the shared expert.
  const auto rows = in_language(options.recompute).experts ? RowsTravel::Alone : RowsTravel::BesideSharedExpert;
  return {layer_time(layer.work.forward, layer.collectives.forward, rows, groups, hardware),
          layer_time(in_microbatch(layer.work.backward, is_first), layer.collectives.backward, RowsTravel::Alone,
                     groups, hardware)};
}

}  // namespace braid
