#include "data/batches/balance.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "models/providers.h"
#include "paper/flops.h"

namespace braid {
namespace {

// A weight costs 2 in forward and, if it trains, 4 in backward.
constexpr double kForward = 2, kTrained = 6;

double weights_of(const ProjectorConfig& projector) {
  double weights = 0;
  for (const ParamSpec& spec : declare_parameters(projector)) weights += static_cast<double>(num_elements(spec));
  return weights;
}

using Costs = std::vector<std::vector<double>>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Relative to the mean of each module. If modules share ranks, each counts by its share of the whole work.
Costs relative(const Costs& costs, bool modules_share_ranks) {
  std::vector<double> sums(costs.at(0).size());
  for (const auto& sample : costs)
    for (std::size_t m = 0; m < sums.size(); ++m) sums[m] += sample[m];
  const double all = std::accumulate(sums.begin(), sums.end(), 0.0);
  Costs result = costs;
  for (auto& sample : result)
    for (std::size_t m = 0; m < sums.size(); ++m) {
      const double whole = modules_share_ranks ? all : sums[m];
      if (whole > 0) sample[m] *= static_cast<double>(costs.size()) / whole;
    }
  return result;
}

std::size_t most_uneven_module(const Costs& costs) {
  std::vector<double> squares(costs.at(0).size()), sums(squares.size());
  for (const auto& sample : costs)
    for (std::size_t m = 0; m < sums.size(); ++m) {
      sums[m] += sample[m];
      squares[m] += sample[m] * sample[m];
    }
  const auto count = static_cast<double>(costs.size());
  for (std::size_t m = 0; m < sums.size(); ++m) squares[m] -= sums[m] * sums[m] / count;
  return static_cast<std::size_t>(std::max_element(squares.begin(), squares.end()) - squares.begin());
}

// The work at all places that are taken so far.
class Loads {
 public:
  explicit Loads(const StepPlaces& places) : places_(places) {
    for (const std::int64_t each : places.per_replica) {
      const std::int64_t replicas = (places.samples + each - 1) / each;
      in_microbatch_.emplace_back(index(replicas * places.microbatches));
      in_step_.emplace_back(index(replicas));
    }
  }

  // How much the sum of the squares of relative loads would grow with the sample at this place.
  double growth(const std::vector<double>& cost, std::int64_t place) const {
    double sum = 0;
    for (std::size_t m = 0; m < cost.size(); ++m) {
      const auto samples = static_cast<double>(places_.per_replica[m]), of_step = samples * places_.microbatches;
      sum += cost[m] * (in_microbatch_[m][microbatch_of(m, place)] / (samples * samples) +
                        in_step_[m][replica_of(m, place)] / (of_step * of_step));
    }
    return sum;
  }

  void add(const std::vector<double>& cost, std::int64_t place) {
    for (std::size_t m = 0; m < cost.size(); ++m) {
      in_microbatch_[m][microbatch_of(m, place)] += cost[m];
      in_step_[m][replica_of(m, place)] += cost[m];
    }
  }

 private:
  std::size_t replica_of(std::size_t m, std::int64_t place) const {
    return index(place % places_.samples / places_.per_replica[m]);
  }
  std::size_t microbatch_of(std::size_t m, std::int64_t place) const {
    return index(place / places_.samples) * in_step_[m].size() + replica_of(m, place);
  }

  const StepPlaces& places_;
  std::vector<std::vector<double>> in_microbatch_, in_step_;  // by module, then by (microbatch and) replica
};

}  // namespace

SampleCosts::SampleCosts(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen) {
  for (const Module& module : topology.modules()) {
    is_encoder_.push_back(module.is_encoder);
    if (!module.is_encoder) continue;
    Encoder encoder = {.config = encoder_named(provider, module.name)};
    const bool trains = std::find(frozen.begin(), frozen.end(), module.name + ".encoder") == frozen.end();
    const double each = trains ? kTrained : kForward;
    std::visit(
        [&](const auto& c) {
          encoder.per_row = each * c.layers * (4.0 * c.hidden + 2.0 * c.ffn) * c.hidden;
          encoder.per_square = each * c.layers * 2.0 * c.hidden;  // scores, and their product with values
        },
        encoder.config.model);
    encoder.per_embedding = kTrained * weights_of(encoder.config.projector);
    encoders_.push_back(std::move(encoder));
  }
  // Only tokens with a label become logits. Operations of attention grow with the product of both arguments.
  per_label_ = kTrained * static_cast<double>(vocab_of(provider.language)) * hidden_of(provider.language);
  const Flops flops = count_flops(provider.language, 1, 1);
  per_token_ = flops.linear + flops.scan - per_label_;
  per_square_ = flops.attention;
}

double SampleCosts::of_text(const TextWork& text) const {
  return per_token_ * static_cast<double>(text.tokens) + per_square_ * text.squares +
         per_label_ * static_cast<double>(text.labels);
}

double SampleCosts::of_media(std::size_t encoder, const SampleSizes::Extents& items) const {
  const Encoder& e = encoders_.at(encoder);
  double sum = 0;
  for (const auto& extent : items) {
    const auto rows = static_cast<double>(hidden_rows_of(e.config.model, extent));
    sum += e.per_row * rows + e.per_square * rows * rows +
           e.per_embedding * static_cast<double>(rows_of(e.config, extent));
  }
  return sum;
}

std::vector<double> SampleCosts::of(const SampleSizes& sample) const {
  std::vector<double> costs;
  std::size_t encoder = 0;
  for (const bool is_encoder : is_encoder_) {
    costs.push_back(is_encoder ? of_media(encoder, sample.media[encoder])
                               : of_text({sample.tokens(), sample.labels(), sample.squares()}));
    encoder += is_encoder;
  }
  return costs;
}

std::vector<std::int64_t> balanced_order(const Costs& costs, const StepPlaces& places) {
  BRAID_CHECK_EQ(std::ssize(costs), places.samples * places.microbatches, "samples of a step");
  const Costs relative_costs = relative(costs, places.modules_share_ranks);
  std::vector<double> totals;
  for (const auto& cost : relative_costs) totals.push_back(std::accumulate(cost.begin(), cost.end(), 0.0));
  std::vector<std::int64_t> by_cost(costs.size());
  std::iota(by_cost.begin(), by_cost.end(), 0);
  std::stable_sort(by_cost.begin(), by_cost.end(),
                   [&](std::int64_t a, std::int64_t b) { return totals[index(a)] > totals[index(b)]; });
  const bool gathers_similar = places.per_replica[most_uneven_module(relative_costs)] == 1;

  constexpr std::int64_t kFree = -1;
  std::vector<std::int64_t> order(costs.size(), kFree);
  Loads loads(places);
  for (std::int64_t i = 0; i < std::ssize(by_cost); ++i) {
    const std::int64_t sample = by_cost[index(i)];
    const std::vector<double>& cost = relative_costs[index(sample)];
    const std::int64_t first = gathers_similar ? i / places.samples * places.samples : 0,
                       end = gathers_similar ? first + places.samples : std::ssize(order);
    std::int64_t best = kFree;
    double least = std::numeric_limits<double>::infinity();
    const auto consider = [&](std::int64_t place) {
      if (order[index(place)] != kFree) return;
      const double growth = loads.growth(cost, place);
      if (growth >= least) return;
      best = place;
      least = growth;
    };
    if (sample >= first && sample < end) consider(sample);  // of equally good places its own, then the first
    for (std::int64_t place = first; place < end; ++place) consider(place);
    order[index(best)] = sample;
    loads.add(cost, best);
  }
  return order;
}

int default_balanced_replicas(const Topology& topology) {
  const int replicas = topology.language().dense.size_of("dp");
  int most = 1;
  for (const Module& module : topology.modules())
    if (module.is_encoder) most = std::max(most, replicas / module.dense.size_of("dp"));
  return std::gcd(replicas, most);
}

SampleBalance::SampleBalance(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen,
                             int replicas)
    : costs_(provider, topology, frozen), replicas_(replicas), colocated_(topology.colocated()) {
  for (const Module& module : topology.modules()) dp_.push_back(module.dense.size_of("dp"));
  language_replicas_ = topology.language().dense.size_of("dp");
}

std::vector<std::int64_t> SampleBalance::order(const std::vector<SampleSizes>& samples, std::int64_t per_replica,
                                               int microbatches) const {
  const std::int64_t in_group = per_replica * replicas_, in_microbatch = std::ssize(samples) / microbatches;
  BRAID_CHECK_EQ(in_microbatch % in_group, 0, "samples of a microbatch in groups of replicas");
  StepPlaces places = {.samples = in_group, .microbatches = microbatches, .modules_share_ranks = colocated_};
  for (const int dp : dp_) places.per_replica.push_back(per_replica * language_replicas_ / dp);
  std::vector<std::int64_t> order(samples.size());
  for (std::int64_t first = 0; first < in_microbatch; first += in_group) {
    // The group's samples, from places of the group to places of all samples given.
    const auto outside = [&](std::int64_t place) {
      return place / in_group * in_microbatch + first + place % in_group;
    };
    Costs costs;
    for (std::int64_t place = 0; place < in_group * microbatches; ++place)
      costs.push_back(costs_.of(samples[index(outside(place))]));
    const std::vector<std::int64_t> of_group = balanced_order(costs, places);
    for (std::int64_t place = 0; place < std::ssize(of_group); ++place)
      order[index(outside(place))] = outside(of_group[index(place)]);
  }
  return order;
}

}  // namespace braid
