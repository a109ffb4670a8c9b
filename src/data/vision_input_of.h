#pragma once

#include <optional>

#include "models/providers.h"
#include "plan/topology.h"
#include "samples/vision_input.h"

namespace braid {

// What a model's vision encoder expects of data; nothing if the topology has none.
std::optional<VisionInput> vision_input_of(const Provider& provider, const Topology& topology);

}  // namespace braid
