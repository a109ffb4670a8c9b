#include "predict/step_draws.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "data/batches/balance.h"
#include "data/batches/sample_sizes.h"
#include "run/lane_options.h"

namespace braid {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<std::string> encoder_names(const Topology& topology) {
  std::vector<std::string> names;
  for (const Module& module : topology.modules())
    if (module.is_encoder) names.push_back(module.name);
  return names;
}

std::vector<SampleSizes> draw_mock(const Recipe& recipe, const Topology& topology, std::int64_t first) {
  // The keys of mock samples are not checked in a recipe with a data set.
  for (const ModuleConfig& module : recipe.topology.modules)
    if (module.kind == "language")
      if (auto problems = validate(recipe.data, recipe.model.model, layout_sizes(module), "data"); !problems.empty())
        throw ConfigError(std::move(problems));
  const MockSizes sizes(recipe.data, recipe.model.model, topology, static_cast<std::uint64_t>(recipe.train.seed));
  std::vector<SampleSizes> samples;
  for (std::int64_t i = 0; i < recipe.train.global_batch; ++i) samples.push_back(sizes.of(first + i));
  return samples;
}

// Adds padding, and orders media by the encoders of the topology.
SampleSizes as_trained(const SampleSizes& stored, const DataStats& stats, const std::vector<std::string>& encoders) {
  SampleSizes sizes = {.pieces = stored.pieces, .media = std::vector<SampleSizes::Extents>(encoders.size())};
  if (const std::int64_t tokens = stored.tokens(); tokens < stats.sequence_length)
    sizes.pieces.push_back({.tokens = stats.sequence_length - tokens});
  for (std::size_t k = 0; k < stats.encoders.size(); ++k)
    sizes.media[index(std::ranges::find(encoders, stats.encoders[k]) - encoders.begin())] = stored.media[k];
  return sizes;
}

std::vector<SampleSizes> draw_stored(const Recipe& recipe, const Topology& topology, const DataStats& stats,
                                     std::int64_t first) {
  const Provider& provider = recipe.model.model;
  if (auto problems =
          problems_of(stats, provider, topology, recipe.data.sequence_length.value_or(provider.sequence_length));
      !problems.empty())
    throw ConfigError(std::move(problems));
  const std::vector<std::string> encoders = encoder_names(topology);
  std::vector<double> draws(index(recipe.train.global_batch));
  RandomField(static_cast<std::uint64_t>(recipe.train.seed), "data statistics")
      .fill_uniform(static_cast<std::uint64_t>(first), draws);
  std::vector<SampleSizes> samples;
  for (const double draw : draws) {
    const auto i = static_cast<std::size_t>(draw * static_cast<double>(stats.sequences.size()));
    samples.push_back(as_trained(stats.sequences[i], stats, encoders));
  }
  return samples;
}

// Joins consecutive samples into one replica's text, whose tokens the cp ranks divide in order.
StepSizes::Text text_of(std::vector<SampleSizes>::const_iterator first, std::int64_t count, int cp) {
  StepSizes::Text text = {.sequences = 0};
  for (auto sample = first; sample != first + count; ++sample) {
    text.tokens += sample->tokens();
    text.sequences += std::ssize(sample->pieces);
    text.squares += sample->squares();
  }
  std::int64_t before = 0;
  for (int rank = 1; rank <= cp; ++rank) {
    std::int64_t end = text.tokens * rank / cp, labels = 0;
    for (auto sample = first; sample != first + count; ++sample) {
      labels += sample->labels_before(end);
      end -= sample->tokens();
    }
    text.labels.push_back(labels - std::exchange(before, labels));
  }
  return text;
}

StepSizes assemble(const std::vector<SampleSizes>& samples, const Recipe& recipe, const Topology& topology) {
  const Grid& language = topology.language().dense;
  const std::int64_t micro_batch = recipe.train.micro_batch, in_microbatch = micro_batch * language.size_of("dp");
  StepSizes sizes;
  for (auto first = samples.begin(); first != samples.end(); first += in_microbatch) {
    auto& texts = sizes.text.emplace_back();
    for (auto own = first; own != first + in_microbatch; own += micro_batch)
      texts.push_back(text_of(own, micro_batch, language.size_of("cp")));
  }
  std::size_t encoder = 0;
  for (const Module& module : topology.modules()) {
    auto& of_module = sizes.media.emplace_back(sizes.text.size());
    for (std::size_t i = 0; i < samples.size(); ++i)
      of_module[i / index(in_microbatch)].push_back(module.is_encoder ? samples[i].media[encoder]
                                                                      : StepSizes::Extents());
    encoder += module.is_encoder;
  }
  return sizes;
}

std::vector<SampleSizes> balanced(std::vector<SampleSizes> samples, const Recipe& recipe, const Topology& topology) {
  const auto balance = sample_balance(recipe, topology);
  if (!balance) return samples;
  const int microbatches = microbatches_of(workload_of(recipe), topology);
  std::vector<SampleSizes> ordered;
  for (const std::int64_t sample : balance->order(samples, recipe.train.micro_batch, microbatches))
    ordered.push_back(std::move(samples[index(sample)]));
  return ordered;
}

using Work = std::vector<std::vector<double>>;  // by microbatch and replica

struct ModuleWork {
  std::string name;
  Work work;
};

Work text_work(const std::vector<std::vector<StepSizes::Text>>& texts, const SampleCosts& costs) {
  Work work;
  for (const auto& microbatch : texts) {
    work.emplace_back();
    for (const StepSizes::Text& text : microbatch)
      work.back().push_back(costs.of_text(
          {text.tokens, std::accumulate(text.labels.begin(), text.labels.end(), std::int64_t{0}), text.squares}));
  }
  return work;
}

Work media_work(const std::vector<std::vector<StepSizes::Extents>>& media, const Module& module,
                const SampleCosts& costs, std::size_t encoder) {
  const auto replicas = index(module.dense.size_of("dp"));
  Work work;
  for (const auto& samples : media) {
    work.emplace_back(replicas);
    for (std::size_t s = 0; s < samples.size(); ++s)
      work.back()[s * replicas / samples.size()] += costs.of_media(encoder, samples[s]);
  }
  return work;
}

// Adds the work of modules that share ranks. Each replica's ranks share its work, and every module assigns equal shares
// of the samples to the same ranks.
ModuleWork joined(const std::vector<ModuleWork>& modules) {
  ModuleWork all;
  std::size_t shares = 1;
  for (const ModuleWork& module : modules) {
    all.name += (all.name.empty() ? "" : " + ") + module.name;
    shares = std::lcm(shares, module.work.at(0).size());
  }
  all.work.assign(modules.at(0).work.size(), std::vector<double>(shares));
  for (const ModuleWork& module : modules)
    for (std::size_t mb = 0; mb < all.work.size(); ++mb)
      for (std::size_t share = 0; share < shares; ++share) {
        const std::size_t replicas = module.work[mb].size();
        all.work[mb][share] += module.work[mb][share * replicas / shares] * static_cast<double>(replicas);
      }
  return all;
}

Imbalance imbalance_of(const ModuleWork& module) {
  const Work& work = module.work;
  const auto microbatches = static_cast<double>(work.size()), replicas = static_cast<double>(work.at(0).size());
  std::vector<double> of_replica(work[0].size());
  double all = 0, most_of_microbatch = 0, slowest = 0;
  for (const std::vector<double>& microbatch : work) {
    std::ranges::transform(of_replica, microbatch, of_replica.begin(), std::plus<>());
    const double sum = std::accumulate(microbatch.begin(), microbatch.end(), 0.0);
    all += sum;
    most_of_microbatch = std::max(most_of_microbatch, sum);
    slowest += std::ranges::max(microbatch);
  }
  if (all == 0) return {.module = module.name};
  return {.module = module.name,
          .replicas = std::ranges::max(of_replica) * replicas / all,
          .microbatches = most_of_microbatch * microbatches / all,
          .lockstep = slowest * replicas / all};
}

}  // namespace

StepSizes draw_step(const Recipe& recipe, const Topology& topology, const DataStats* stats, std::uint64_t step) {
  const std::int64_t first = static_cast<std::int64_t>(step) * recipe.train.global_batch;
  std::vector<SampleSizes> samples =
      stats ? draw_stored(recipe, topology, *stats, first) : draw_mock(recipe, topology, first);
  StepSizes sizes = assemble(balanced(std::move(samples), recipe, topology), recipe, topology);
  const bool has_doubles = !stats && is_mock(recipe.data);  // pixels of a data set are bytes
  sizes.value_bytes.assign(topology.modules().size(), has_doubles ? 8 : 1);
  return sizes;
}

std::vector<Imbalance> imbalance_of(const StepSizes& sizes, const Recipe& recipe, const Topology& topology) {
  const SampleCosts costs(recipe.model.model, topology, frozen_sets(recipe));
  std::vector<ModuleWork> modules;
  std::size_t encoder = 0;
  for (std::size_t m = 0; m < topology.modules().size(); ++m) {
    const Module& module = topology.modules()[m];
    modules.push_back({module.name, module.is_encoder ? media_work(sizes.media[m], module, costs, encoder)
                                                      : text_work(sizes.text, costs)});
    encoder += module.is_encoder;
  }
  if (topology.colocated()) modules = {joined(modules)};
  std::vector<Imbalance> all;
  for (const ModuleWork& module : modules) all.push_back(imbalance_of(module));
  return all;
}

}  // namespace braid
