#include "predict/step_draws.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/philox.h"
#include "data/batches/sample_sizes.h"
#include "run/data_source.h"

namespace braid {
namespace {

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
    sizes.media[std::ranges::find(encoders, stats.encoders[k]) - encoders.begin()] = stored.media[k];
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
  std::vector<double> draws(recipe.train.global_batch);
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
      of_module[i / in_microbatch].push_back(module.is_encoder ? samples[i].media[encoder] : StepSizes::Extents());
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
    ordered.push_back(std::move(samples[sample]));
  return ordered;
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

}  // namespace braid
