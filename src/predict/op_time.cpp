#include "predict/op_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace braid {
namespace {

// Averages times per operation (or byte) over the measured sizes, weighted by the inverse fourth power of the distance
// between the logarithms of the sizes. The result is exact at a measured size and between its neighbours elsewhere.
// Times rather than rates are averaged, because a size may have been measured as a forward and as a backward, and both
// will run.
double giga_per_s(const OperatorSpeed& speed, const std::array<double, 3>& size) {
  const std::array<double, 3> at = {std::log2(size[0]), std::log2(size[1]), std::log2(size[2])};
  double weights = 0, times = 0;
  for (const OperatorRate& rate : speed.rates) {
    double squares = 1e-6;  // at a measured size, too
    for (std::size_t i = 0; i < at.size(); ++i) squares += (at[i] - rate.log2_size[i]) * (at[i] - rate.log2_size[i]);
    const double weight = 1 / (squares * squares);
    weights += weight;
    times += weight / rate.giga_per_s;
  }
  return weights / times;
}

bool carries_rows(const Collective& collective) {
  return collective.group == "ep" && collective.operation == "all_to_all";
}

CommKind kind_of(const Collective& collective) { return kind_of(CommKey{collective.group, collective.operation}); }

double share_hidden(const Collective& collective) {
  return collective.beside ? 1 : 1 - 1 / static_cast<double>(collective.operations);
}

}  // namespace

double seconds_of(const Work& work, const HardwareProfile& hardware) {
  if (work.amount <= 0) return 0;
  const OperatorSpeed& speed = speed_of(hardware, work.op);
  return work.count * (speed.latency_us * 1e-6 + work.amount / (giga_per_s(speed, work.size) * 1e9));
}

double seconds_of(const std::vector<Work>& work, const HardwareProfile& hardware) {
  double device = 0, host = 0;
  for (const Work& each : work) {
    if (each.when == When::FirstMicrobatch) continue;
    device += seconds_of(each, hardware);
    host += each.count * each.launches * hardware.host_us * 1e-6;
  }
  return is_host(hardware) ? device + host : std::max(device, host);
}

double OpTime::communication() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }

OpTime& OpTime::operator+=(const OpTime& other) {
  compute += other.compute;
  for (std::size_t i = 0; i < exposed.size(); ++i) exposed[i] += other.exposed[i];
  return *this;
}

double GroupTimes::seconds(const Collective& collective) {
  const auto [found, is_new] = placements_.try_emplace(collective.group);
  if (is_new) found->second = place_worst_group(module_, collective.group, rank_, hardware_.ranks_per_node);
  return seconds_of(collective, found->second, hardware_);
}

OpTime layer_time(const std::vector<Work>& work, const Collectives& collectives, RowsTravel travel, GroupTimes& groups,
                  const HardwareProfile& hardware) {
  OpTime time = {.compute = seconds_of(work, hardware)};
  double products = 0, beside_experts = 0;
  for (const Work& each : work) {
    if (counts_bytes(each.op) && !each.beside_experts) continue;
    const double seconds = seconds_of(each, hardware);
    if (!counts_bytes(each.op)) products += seconds;
    if (each.beside_experts) beside_experts += seconds;
  }
  double rows = 0, pieces = 1;
  for (const Collective& collective : collectives) {
    const double seconds = groups.seconds(collective);
    if (carries_rows(collective)) {
      rows += seconds;
      pieces = std::max(pieces, static_cast<double>(collective.operations));
      continue;
    }
    const double hidden = std::min(share_hidden(collective) * seconds, products);
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

OpTime collectives_time(const Collectives& collectives, GroupTimes& groups) {
  OpTime time;
  for (const Collective& collective : collectives) time[kind_of(collective)] += groups.seconds(collective);
  return time;
}

}  // namespace braid
