#include "predict/typical_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "plan/param_spec.h"
#include "plan/schedule.h"

namespace braid {
namespace {

// Equal items that match a sample's mean number of items and mean number of patches or frames.
StepSizes::Extents mean_media(const std::vector<std::vector<StepSizes::Extents>>& by_microbatch, double samples,
                              const EncoderConfig& encoder) {
  double items = 0, area = 0;
  for (const auto& of_samples : by_microbatch)
    for (const StepSizes::Extents& extents : of_samples)
      for (const auto& extent : extents) {
        items += 1 / samples;
        area += static_cast<double>(num_elements(extent)) / samples;
      }
  if (items == 0) return {};
  const double count = std::max(1.0, std::round(items)), of_item = area / count;
  const auto side = std::llround(extent_dims(encoder.model) == 1 ? of_item : std::sqrt(of_item));
  return StepSizes::Extents(count, fitting_extent(encoder, std::max(1LL, side), std::max(1LL, side)));
}

TypicalSample mean_sample(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps) {
  const double samples = static_cast<double>(steps.size()) * recipe.train.global_batch;
  double tokens = 0, labels = 0, sequences = 0, squares = 0;
  std::vector<std::vector<std::vector<StepSizes::Extents>>> media(topology.modules().size());
  for (const StepSizes& step : steps) {
    for (const auto& replicas : step.text)
      for (const StepSizes::Text& text : replicas) {
        tokens += static_cast<double>(text.tokens) / samples;
        labels +=
            static_cast<double>(std::accumulate(text.labels.begin(), text.labels.end(), std::int64_t{0})) / samples;
        sequences += static_cast<double>(text.sequences) / samples;
        squares += text.squares / samples;
      }
    for (std::size_t m = 0; m < media.size(); ++m) std::ranges::copy(step.media[m], std::back_inserter(media[m]));
  }
  TypicalSample sample = {.tokens = std::llround(tokens),
                          .labels = std::llround(labels),
                          .sequences = std::max(1LL, std::llround(sequences)),
                          .squares = squares,
                          .value_bytes = steps.front().value_bytes};
  for (std::size_t m = 0; m < media.size(); ++m) {
    const Module& module = topology.modules()[m];
    sample.media.push_back(module.is_encoder ? mean_media(media[m], samples, encoder_of(recipe.model.model, module))
                                             : StepSizes::Extents{});
  }
  return sample;
}

}  // namespace

Recipe smallest(Recipe recipe) {
  recipe.topology.colocated = false;
  recipe.topology.world_size = std::nullopt;
  for (ModuleConfig& module : recipe.topology.modules) module = {.name = module.name, .kind = module.kind};
  recipe.train.micro_batch = recipe.train.global_batch = 1;
  recipe.train.prefetch = 0;
  return recipe;
}

TypicalSample full_sample(const Recipe& recipe) {
  const Recipe small = smallest(recipe);
  const StepSizes sizes = full_step(small, Topology(small.topology, workload_of(small)));
  const StepSizes::Text& text = sizes.text.front().front();
  TypicalSample sample = {.tokens = text.tokens,
                          .labels = text.labels.front(),
                          .sequences = text.sequences,
                          .squares = text.squares,
                          .value_bytes = sizes.value_bytes};
  for (const auto& of_module : sizes.media) sample.media.push_back(of_module.front().front());
  return sample;
}

TypicalSample typical_sample(const Recipe& recipe, const SimulateOptions& options) {
  if (!options.draw) return full_sample(recipe);
  const Topology topology(recipe.topology, workload_of(recipe));
  std::vector<StepSizes> steps;
  for (int step = 0; step < options.steps; ++step) steps.push_back(options.draw(recipe, topology, step));
  return mean_sample(recipe, topology, steps);
}

StepSizes equal_step(const TypicalSample& sample, const Recipe& recipe, const Topology& topology) {
  const Grid& language = topology.language().dense;
  const std::int64_t micro_batch = recipe.train.micro_batch, cp = language.size_of("cp"), dp = language.size_of("dp");
  const std::size_t microbatches = microbatches_of(workload_of(recipe), topology);
  const StepSizes::Text text = {.tokens = micro_batch * sample.tokens,
                                .sequences = micro_batch * sample.sequences,
                                .labels = std::vector<std::int64_t>(cp, micro_batch * sample.labels / cp),
                                .squares = static_cast<double>(micro_batch) * sample.squares};
  StepSizes sizes = {.text{microbatches, std::vector<StepSizes::Text>(dp, text)}, .value_bytes = sample.value_bytes};
  for (const StepSizes::Extents& of_sample : sample.media)
    sizes.media.emplace_back(microbatches, std::vector<StepSizes::Extents>(micro_batch * dp, of_sample));
  return sizes;
}

}  // namespace braid
