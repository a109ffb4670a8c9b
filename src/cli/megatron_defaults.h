// Defaults of Megatron that Braid's models do not support.
#pragma once

#include <string>
#include <vector>

#include "cli/megatron_command.h"
#include "cli/megatron_flags.h"

namespace braid {

bool has_experts(const MegatronCommand& command);

// A sentence for each such setting.
std::vector<std::string> megatron_defaults(const MegatronCommand& command, ModelFamily family);

}  // namespace braid
