#include "data/batches/vision_input.h"

#include <fmt/format.h>

namespace braid {

std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology) {
  std::vector<MediaToken> tokens;
  for (const Module& module : topology.modules())
    for (const EncoderConfig& encoder : provider.encoders)
      if (module.name == encoder.name) tokens.push_back({encoder.name, encoder.token_id});
  return tokens;
}

std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology) {
  for (const Module& module : topology.modules())
    for (const EncoderConfig& encoder : provider.encoders) {
      if (module.name != encoder.name) continue;
      VisionInput vision = {.encoder = encoder.name,
                            .pixel_shuffle = encoder.pixel_shuffle,
                            .token = encoder.token,
                            .token_id = encoder.token_id,
                            .token_id_key = fmt::format("model.{}.token_id", encoder.name)};
      if (const auto* radio = std::get_if<RadioConfig>(&encoder.model)) {
        vision.patch = radio->patch;
        return vision;
      }
      if (const auto* clip = std::get_if<ClipConfig>(&encoder.model)) {
        vision.patch = clip->patch;
        vision.square = clip->patch_side();
        return vision;
      }
    }
  return std::nullopt;
}

}  // namespace braid
