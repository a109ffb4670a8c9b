#include "predict/calibrate_collectives.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>

#include "base/error.h"
#include "comm/control_line.h"
#include "comm/run_as_rank.h"
#include "comm/world.h"
#include "predict/collective_time.h"
#include "predict/op_time.h"
#include "predict/small_step.h"

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
  switch (collective_kind(each.operation)) {
    case CollectiveKind::AllReduce:
      return [&group, x = values(n * part)]() mutable { group.all_reduce(x); };
    case CollectiveKind::AllGather:
      return [&group, whole = values(n * part), own = values(part)]() mutable { group.all_gather(whole, own); };
    case CollectiveKind::ReduceScatter:
      return [&group, whole = values(n * part), own = values(part)]() mutable { group.reduce_scatter(own, whole); };
    case CollectiveKind::AllToAll:
      return [&group, out = values(n * part), in = values(n * part),
              rows = std::vector<std::int64_t>(n, part)]() mutable { group.all_to_all(out, in, rows, rows); };
    case CollectiveKind::Broadcast:
      return [&group, x = values(n * part)]() mutable { group.broadcast(x, 0); };
    case CollectiveKind::Reduce:
      return [&group, x = values(n * part)]() mutable { group.reduce(x, 0); };
    case CollectiveKind::Exchange:
      break;
  }
  throw_check_failed(__FILE__, __LINE__, "no collective to measure");
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

}  // namespace braid
