#include <algorithm>

#include "base/error.h"
#include "predict/calibrate_collectives.h"
#include "predict/collective_time.h"

namespace braid {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double crowding_of(const CollectiveRuns& runs) {
  if (runs.ranks <= runs.cores) return 1;
  std::vector<double> ratios;
  for (const auto& round : runs.rounds) ratios.push_back(round.all.computed / round.few.computed);
  return std::max(median(ratios), 1.0);
}

constexpr std::int64_t kSmall = 128;  // bytes whose transfer time is negligible beside the latency

double predicted(const CollectiveCase& call, const HardwareProfile& profile) {
  return seconds_of(collective_kind(call.operation), static_cast<double>(call.bytes), {call.ranks, 1, call.ranks},
                    profile);
}

// The number of messages that follow each other in a call.
double messages_of(const CollectiveCase& call) {
  HardwareProfile only_latency;
  only_latency.inside_node = {.latency_us = 1e6, .rates = {{1, 1e12}}};
  return predicted(call, only_latency);
}

// The bytes that each rank's link moves.
double volume_of(const CollectiveCase& call) {
  HardwareProfile only_rate;
  only_rate.inside_node = {.latency_us = 0, .rates = {{1, 1e-9}}};
  return predicted(call, only_rate);
}

struct Latencies {
  double call = 0, message = 0;  // seconds
};

// The least sum of squared errors of call + messages x message, neither of them negative.
Latencies latencies_of(const std::vector<MeasuredCollective>& measured) {
  double cases = 0, messages = 0, squares = 0, seconds = 0, products = 0;
  for (const MeasuredCollective& each : measured) {
    if (each.call.bytes > kSmall) continue;
    const double count = messages_of(each.call);
    ++cases;
    messages += count;
    squares += count * count;
    seconds += each.seconds;
    products += count * each.seconds;
  }
  const double determinant = cases * squares - messages * messages;
  BRAID_CHECK(determinant > 0, "operations with different numbers of messages must have been measured");
  const double message = std::max(0.0, (cases * products - messages * seconds) / determinant);
  const double call = std::max(0.0, (seconds - messages * message) / cases);
  return {call, call > 0 ? message : products / squares};
}

// The share of CPU time in a call's wall time, in groups where each rank has a core.
double computed_share(const std::vector<MeasuredCollective>& measured, int cores) {
  double seconds = 0, elapsed = 0;
  for (const MeasuredCollective& each : measured) {
    if (each.call.ranks > cores || each.call.bytes > kSmall) continue;
    seconds += each.seconds;
    elapsed += each.elapsed;
  }
  return elapsed > seconds ? seconds / elapsed : 1;
}

// Rates from the additional time of a larger message over a small one of the same operation.
std::vector<RatePoint> rates_of(const std::vector<MeasuredCollective>& measured) {
  std::vector<RatePoint> rates;
  for (const MeasuredCollective& each : measured) {
    const CollectiveCase& call = each.call;
    if (call.bytes <= kSmall) continue;
    const auto is_small = [&](const MeasuredCollective& other) {
      return other.call.operation == call.operation && other.call.ranks == call.ranks && other.call.bytes <= kSmall;
    };
    const auto small = std::ranges::find_if(measured, is_small);
    BRAID_CHECK(small != measured.end(), "no small message of {} between {} ranks", call.operation, call.ranks);
    const double longer = std::max(each.seconds - small->seconds, 0.1 * each.seconds);  // a smaller difference is noise
    rates.push_back({static_cast<double>(call.bytes), volume_of(call) / longer / 1e9});
  }
  std::ranges::sort(rates, {}, &RatePoint::bytes);
  return rates;
}

}  // namespace

CollectiveTimes times_of(const CollectiveRuns& runs) {
  std::vector<double> of_layers;
  for (const auto& round : runs.rounds)
    for (const auto& [without, with] : round.cases) of_layers.push_back(without.computed);
  CollectiveTimes times = {.layers_s = median(of_layers), .crowding = crowding_of(runs)};
  // Without calls, wall time is CPU time if each rank has a core; fit_collectives() uses `elapsed` of such groups only.
  const double of_call = times.layers_s / runs.calls;
  for (std::size_t i = 0; i < runs.cases.size(); ++i) {
    std::vector<double> computed, elapsed;
    for (const auto& round : runs.rounds) {
      const auto& [without, with] = round.cases[i];
      computed.push_back(with.computed / without.computed - 1);
      elapsed.push_back(with.elapsed / without.elapsed - 1);
    }
    times.calls.push_back({runs.cases[i], median(computed) * of_call, median(elapsed) * of_call});
  }
  return times;
}

std::vector<CollectiveCase> collective_cases(int ranks) {
  std::vector<CollectiveCase> cases;
  for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"})
    cases.push_back({operation, ranks, kSmall});
  if (ranks == 2)
    for (const std::int64_t bytes : {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 23})
      cases.push_back({"all_gather", ranks, bytes});
  return cases;
}

void fit_collectives(const std::vector<MeasuredCollective>& measured, HardwareProfile& profile) {
  std::vector<MeasuredCollective> usable = measured;
  for (MeasuredCollective& each : usable)
    each.seconds = std::max(each.seconds, 1e-7);  // a difference of two noisy times
  profile.collective_cpu = computed_share(usable, profile.cores);
  for (MeasuredCollective& each : usable) each.seconds /= profile.collective_cpu;  // wall time from here on
  const Latencies latencies = latencies_of(usable);
  profile.collective_us = latencies.call * 1e6;
  profile.inside_node = {.latency_us = latencies.message * 1e6, .rates = rates_of(usable)};
  profile.between_nodes = profile.inside_node;
}

}  // namespace braid
