// The life of one rank process: rendezvous, run, and report failures.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/comm_config.h"
#include "comm/world_spec.h"

namespace braid {

class World;

// Runs `body` as the rank given by `spec` and returns when every rank has run it. `rank_coordinates` gives the module
// and coordinates of each rank (may be empty).
//
// When this or any other rank fails, the root cause is printed on stderr, the same line on every rank, and the process
// ends here: `body` may be deadlocked in a collective, and closing connections cleanly could wait for dead peers. The
// exit code is 2 when this rank's own error was a ConfigError, else 1.
//
// Throws ConfigError before the rendezvous when the name of rank 0's host does not resolve in time, and
// std::runtime_error when `stopped` returns true meanwhile.
void run_as_rank(const WorldSpec& spec, const CommConfig& config, const std::vector<std::string>& rank_coordinates,
                 const std::function<void(World&)>& body, const std::function<bool()>& stopped = {});

}  // namespace braid
