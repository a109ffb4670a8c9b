// The life of one rank process: find the peers, run, and fail loudly.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/dist_config.h"
#include "dist/world_spec.h"

namespace braid {

class World;

// Runs `body` as the rank that `spec` says and returns the process's exit code: 0, 2 for a ConfigError, 1
// otherwise. `places` says, by rank, which module and coordinates it has (may be empty).
//
// When this or any other rank fails, the root cause is printed on stderr, the same line on every rank. If
// another rank failed the process is ended from the monitor's thread, since `body` may be stuck in a
// collective for good.
int run_as_rank(const WorldSpec& spec, const DistConfig& config, const std::vector<std::string>& places,
                const std::function<void(World&)>& body);

}  // namespace braid
