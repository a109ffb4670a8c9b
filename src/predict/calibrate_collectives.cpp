#include "predict/calibrate_collectives.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <memory>

#include "base/error.h"
#include "comm/control_line.h"
#include "comm/run_as_rank.h"
#include "comm/world.h"
#include "predict/calibration_cases.h"
#include "predict/op_time.h"

namespace braid {
namespace {

using Seconds = CollectiveRuns::Seconds;
using Call = std::function<void()>;

// CPU time of all threads of this process, which other processes do not affect.
double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Call call_of(const CollectiveCase& each, const Group& group) {
  const std::int64_t n = group.size(), part = each.bytes / 4 / n;
  const auto values = [](std::int64_t count) { return at::zeros({count}); };
  const std::map<std::string, Call> calls = {
      {"all_reduce", [&group, x = values(n * part)]() mutable { group.all_reduce(x); }},
      {"all_gather",
       [&group, whole = values(n * part), own = values(part)]() mutable { group.all_gather(whole, own); }},
      {"reduce_scatter",
       [&group, whole = values(n * part), own = values(part)]() mutable { group.reduce_scatter(own, whole); }},
      {"all_to_all", [&group, out = values(n * part), in = values(n * part),
                      rows = std::vector<std::int64_t>(n, part)]() mutable { group.all_to_all(out, in, rows, rows); }},
      {"broadcast", [&group, x = values(n * part)]() mutable { group.broadcast(x, 0); }},
      {"reduce", [&group, x = values(n * part)]() mutable { group.reduce(x, 0); }}};
  return calls.at(each.operation);
}

// The layers that ranks compute between their calls. There are several of each kind because, in a model, the other
// layers evict a layer's memory from the caches before its turn.
constexpr std::array kLayerKinds = {"M", "*", "E", "-"};
constexpr int kOfEachKind = 3;
constexpr std::int64_t kTokens = 256;

using Layers = std::vector<std::unique_ptr<SmallStep>>;

Layers some_layers() {
  Layers layers;
  for (int i = 0; i < kOfEachKind; ++i)
    for (const char* kind : kLayerKinds) layers.push_back(std::make_unique<SmallStep>(kind, kTokens, at::kCPU));
  return layers;
}

double seconds_of_layers(const HardwareProfile& profile) {
  double seconds = 0;
  for (const char* kind : kLayerKinds)
    seconds += kOfEachKind * seconds_of(small_step_work(kind, kTokens, at::kCPU), profile);
  return seconds;
}

// Runs forward and backward of each layer on this rank, with a call after each.
Seconds run(const Layers& layers, const Call& call, const Group& group) {
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  const double begin = process_seconds();
  for (const auto& layer : layers) {
    const at::Tensor loss = layer->forward();
    call();
    loss.backward();
    call();
  }
  group.barrier();
  return {process_seconds() - begin, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

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
  return seconds_of(call.operation, static_cast<double>(call.bytes), {call.ranks, 1, call.ranks}, profile);
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

CollectiveRuns measure_collectives(World& world, int cores, const std::vector<CollectiveCase>& cases, int rounds,
                                   const std::function<void()>& after_round) {
  at::set_num_threads(1);
  const Group& group = world.everyone();
  const Layers layers = some_layers(), none;
  const Call no_call = [] {};
  CollectiveRuns runs = {
      .ranks = world.size(), .cores = cores, .calls = 2 * static_cast<int>(layers.size()), .cases = cases};
  for (int i = -1; i < rounds; ++i) {  // the first one warms up
    CollectiveRuns::Round round;
    round.few = run(world.rank() < cores ? layers : none, no_call, group);
    round.all = run(layers, no_call, group);
    for (const CollectiveCase& each : cases) {
      const Seconds without = run(layers, no_call, group), with = run(layers, call_of(each, group), group);
      round.cases.push_back({without, with});
    }
    if (i >= 0) runs.rounds.push_back(std::move(round));
    after_round();
  }
  return runs;
}

void measure_collectives_as_rank(const std::string& path, int cores) {
  constexpr int kRounds = 12;
  run_as_rank(*world_spec_from(process_env()), {.device = "cpu"}, {}, [&](World& world) {
    const auto start = std::chrono::steady_clock::now();
    int done = 0;
    const auto tell_launcher = [&] {
      if (world.rank() > 0) return;
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      ++done;
      const double left = seconds * (kRounds + 1 - done) / done;
      fmt::print("{}",
                 to_control_line(RunProgress{.iteration = done, .iterations = kRounds + 1, .seconds_left = left}));
      std::fflush(stdout);
    };
    const CollectiveRuns runs =
        measure_collectives(world, cores, collective_cases(world.size()), kRounds, tell_launcher);
    if (world.rank() > 0) return;
    const CollectiveTimes measured = times_of(runs);
    std::ofstream file(path);
    file << fmt::format("{} {}\n", measured.layers_s, measured.crowding);
    for (const auto& [call, seconds, elapsed] : measured.calls)
      file << fmt::format("{} {} {} {} {}\n", call.operation, call.ranks, call.bytes, seconds, elapsed);
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  });
}

CollectiveTimes read_collectives(const std::string& path) {
  std::ifstream file(path);
  CollectiveTimes measured;
  file >> measured.layers_s >> measured.crowding;
  for (MeasuredCollective each;
       file >> each.call.operation >> each.call.ranks >> each.call.bytes >> each.seconds >> each.elapsed;)
    measured.calls.push_back(each);
  return measured;
}

std::vector<MeasuredCollective> at_speed_of(const HardwareProfile& profile, const CollectiveTimes& times) {
  std::vector<MeasuredCollective> scaled = times.calls;
  const double scale = seconds_of_layers(profile) / times.layers_s;
  for (MeasuredCollective& each : scaled) {
    each.seconds *= scale;
    each.elapsed *= scale;
  }
  return scaled;
}

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
