// The life of one rank process: find the peers, run, and fail loudly.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/dist_config.h"
#include "dist/world_spec.h"

namespace braid {

class World;

// Runs `body` as the rank that `spec` says and returns when every rank has run it. `places` says, by rank,
// which module and coordinates it has (may be empty).
//
// When this or any other rank fails, the root cause is printed on stderr, the same line on every rank, and
// the process ends here: `body` may be stuck in a collective for good, and taking connections down politely
// could wait for peers that are gone. The exit code is 2 when this rank's own error was a ConfigError,
// else 1.
//
// Before ranks can meet, when the name of rank 0's host does not resolve in time, it throws ConfigError; and
// std::runtime_error when `stopped` says meanwhile that the run was asked to end.
void run_as_rank(const WorldSpec& spec, const DistConfig& config, const std::vector<std::string>& places,
                 const std::function<void(World&)>& body, const std::function<bool()>& stopped = {});

}  // namespace braid
