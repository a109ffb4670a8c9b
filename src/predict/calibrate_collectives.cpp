#include "predict/calibrate_collectives.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>

#include "base/error.h"
#include "dist/run_as_rank.h"
#include "dist/world.h"
#include "predict/collective_time.h"
#include "predict/small_step.h"

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

// What ranks compute between their calls: each kind of layer, forward and backward. There are several of each, as in a
// model, whose other layers have taken a layer's memory out of the caches until its turn comes.
class LayersAndCalls {
 public:
  explicit LayersAndCalls(const Group& group) : group_(group) {
    for (int i = 0; i < kLayersOfEachKind; ++i)
      for (const char* kind : {"M", "*", "E", "-"})
        layers_.push_back(std::make_unique<SmallStep>(kind, kTokens, at::kCPU));
  }

  int calls() const { return static_cast<int>(2 * layers_.size()); }

  // Seconds that this rank has computed.
  double run(const Call& call) const {
    group_.barrier();
    const double begin = process_seconds();
    for (const auto& layer : layers_) {
      const at::Tensor loss = layer->forward();
      call();
      loss.backward();
      call();
    }
    group_.barrier();
    return process_seconds() - begin;
  }

 private:
  static constexpr int kLayersOfEachKind = 5;
  static constexpr std::int64_t kTokens = 128;
  const Group& group_;
  std::vector<std::unique_ptr<SmallStep>> layers_;
};

// Other programs that cool the caches meanwhile can only raise a time.
double lower_quartile(std::vector<double> values) {
  const auto quarter = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), quarter, values.end());
  return *quarter;
}

}  // namespace

std::vector<MeasuredCollective> measure_collectives(World& world, const std::vector<CollectiveCase>& cases,
                                                    int rounds) {
  at::set_num_threads(1);
  const Group& group = world.everyone();
  const LayersAndCalls layers(group);
  std::vector<Call> calls = {[] {}};
  for (const CollectiveCase& each : cases) calls.push_back(call_of(each, group));
  std::vector<std::vector<double>> times(calls.size());
  for (int round = -1; round < rounds; ++round)  // the first one warms up
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const double seconds = layers.run(calls[i]);
      if (round >= 0) times[i].push_back(seconds);
    }
  std::vector<MeasuredCollective> measured;
  for (std::size_t i = 0; i < cases.size(); ++i)
    measured.push_back({cases[i], (lower_quartile(times[i + 1]) - lower_quartile(times[0])) / layers.calls()});
  return measured;
}

void measure_collectives_as_rank(const std::string& path) {
  constexpr int kRounds = 20;
  run_as_rank(*world_spec_from(process_env()), {.device = "cpu"}, {}, [&](World& world) {
    const auto measured = measure_collectives(world, collective_cases(world.size()), kRounds);
    if (world.rank() > 0) return;
    std::ofstream file(path);
    for (const auto& [call, seconds] : measured)
      file << fmt::format("{} {} {} {}\n", call.operation, call.ranks, call.bytes, seconds);
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  });
}

std::vector<MeasuredCollective> read_collectives(const std::string& path) {
  std::ifstream file(path);
  std::vector<MeasuredCollective> measured;
  for (MeasuredCollective each; file >> each.call.operation >> each.call.ranks >> each.call.bytes >> each.seconds;)
    measured.push_back(each);
  return measured;
}

}  // namespace braid
