// What data needs to know of a model's vision encoder. No libtorch here.
#pragma once

#include <optional>

#include "models/providers.h"
#include "plan/topology.h"
#include "samples/vision_input.h"

namespace braid {

// Nothing if the topology has no encoder for pictures.
std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology);

}  // namespace braid
