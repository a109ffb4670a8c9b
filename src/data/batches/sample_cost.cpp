#include "data/batches/sample_cost.h"

#include <algorithm>

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

}  // namespace braid
