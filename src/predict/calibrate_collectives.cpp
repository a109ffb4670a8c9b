#include "predict/calibrate_collectives.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>

#include "base/error.h"
#include "dist/run_as_rank.h"
#include "dist/world.h"
#include "predict/collective_time.h"
#include "predict/small_step.h"
#include "predict/work_time.h"

namespace braid {
namespace {

using Call = std::function<void()>;

// How long all threads of this process have computed, whatever other processes did meanwhile.
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
              rows = std::vector<std::int64_t>(static_cast<std::size_t>(n), part)]() mutable {
        group.all_to_all(out, in, rows, rows);
      };
    case CollectiveKind::Broadcast:
      return [&group, x = values(n * part)]() mutable { group.broadcast(x, 0); };
    case CollectiveKind::Reduce:
      return [&group, x = values(n * part)]() mutable { group.reduce(x, 0); };
    case CollectiveKind::Exchange:
      break;
  }
  throw_check_failed(__FILE__, __LINE__, "no collective to measure");
}

using Layers = std::vector<std::unique_ptr<SmallStep>>;

// What ranks compute between their calls. There are several layers of each kind, as in a model, whose other layers have
// taken a layer's memory out of the caches until its turn comes.
Layers some_layers() {
  constexpr int kOfEachKind = 3;
  constexpr std::int64_t kTokens = 256;
  Layers layers;
  for (int i = 0; i < kOfEachKind; ++i)
    for (const char* kind : {"M", "*", "E", "-"})
      layers.push_back(std::make_unique<SmallStep>(kind, kTokens, at::kCPU));
  return layers;
}

struct Seconds {
  double computed = 0, elapsed = 0;
};

// Of this rank: forward and backward of each layer, with a call after each.
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

}  // namespace

// The speed of a machine changes from second to second if others use it, so each run with calls follows one without,
// and counts in units of that.
CollectiveTimes measure_collectives(World& world, int cores, const std::vector<CollectiveCase>& cases, int rounds) {
  at::set_num_threads(1);
  const Group& group = world.everyone();
  const Layers layers = some_layers(), none;
  const Call no_call = [] {};
  std::vector<std::vector<double>> computed(cases.size()), elapsed(cases.size());
  std::vector<double> of_layers, crowding;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    const Seconds few = run(world.rank() < cores ? layers : none, no_call, group), all = run(layers, no_call, group);
    if (round >= 0) crowding.push_back(all.computed / few.computed);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Seconds without = run(layers, no_call, group), with = run(layers, call_of(cases[i], group), group);
      if (round < 0) continue;
      of_layers.push_back(without.computed);
      computed[i].push_back(with.computed / without.computed - 1);
      elapsed[i].push_back(with.elapsed / without.elapsed - 1);
    }
  }
  CollectiveTimes times = {.layers_s = median(of_layers), .crowding = std::max(median(crowding), 1.0)};
  // Without calls, wall time is CPU time if each rank has a core; fit_collectives() uses `elapsed` of such groups only.
  const double of_call = times.layers_s / static_cast<double>(2 * layers.size());
  for (std::size_t i = 0; i < cases.size(); ++i)
    times.calls.push_back({cases[i], median(computed[i]) * of_call, median(elapsed[i]) * of_call});
  return times;
}

void measure_collectives_as_rank(const std::string& path, int cores) {
  constexpr int kRounds = 12;
  run_as_rank(*world_spec_from(process_env()), {.device = "cpu"}, {}, [&](World& world) {
    const CollectiveTimes measured = measure_collectives(world, cores, collective_cases(world.size()), kRounds);
    if (world.rank() > 0) return;
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
  double layers_s = 0;
  for (const auto& layer : some_layers()) layers_s += seconds_of(layer->work(), profile);
  std::vector<MeasuredCollective> scaled = times.calls;
  const double scale = layers_s / times.layers_s;
  for (MeasuredCollective& each : scaled) {
    each.seconds *= scale;
    each.elapsed *= scale;
  }
  return scaled;
}

}  // namespace braid
