// What data needs to know of a model's encoders. No libtorch here.
#pragma once

#include <optional>
#include <vector>

#include "data/samples/vision_input.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

// Of the topology's encoders, in the order of its modules.
std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology);

// Nothing if the topology has no encoder for pictures.
std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology);

}  // namespace braid
