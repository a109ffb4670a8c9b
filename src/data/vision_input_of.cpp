#include "data/vision_input_of.h"

namespace braid {

std::optional<VisionInput> vision_input_of(const Provider& provider, const Topology& topology) {
  for (const Module& module : topology.modules())
    for (const EncoderConfig& encoder : provider.encoders) {
      if (module.name != encoder.name) continue;
      VisionInput vision = {
          .pixel_shuffle = encoder.pixel_shuffle, .token = encoder.token, .token_id = encoder.token_id};
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
