// The life of one rank process: rendezvous, run, and report failures.
#pragma once

#include "base/config.h"
#include "base/error.h"
#include "comm/world_spec.h"

namespace braid {

class World;

// Auto: NCCL with a GPU per rank, else Gloo. NcclShared, for tests: ranks may share a GPU.
enum class BackendChoice { Auto, Gloo, Nccl, NcclShared };
constexpr auto choice_names(BackendChoice) { return std::array{"auto", "gloo", "nccl", "nccl-shared"}; }

struct CommConfig {
  DeviceChoice device = DeviceChoice::Auto;
  BackendChoice backend = BackendChoice::Auto;
  double hang_limit_s = 300;       // no progress for this long: the run is ended and the stuck rank named
  double silence_limit_s = 30;     // no message from a rank's monitor for this long: the rank or its host is lost
  double connect_timeout_s = 300;  // how long ranks wait for each other at start
};

inline void describe(Fields& f, CommConfig& c) {
  f.choice("device", c.device, "device of the tensors");
  f.choice("backend", c.backend, "transport of collectives");
  f.field("hang_limit_s", c.hang_limit_s, "end the run when a rank makes no progress for this long");
  f.field("silence_limit_s", c.silence_limit_s, "end the run when a rank or host sends no heartbeat for this long");
  f.field("connect_timeout_s", c.connect_timeout_s, "how long ranks wait for each other at start");
}

// Runs `body` as the rank given by `spec` and returns when every rank has run it. `rank_coordinates` gives the module
// and coordinates of each rank (may be empty).
//
// When any rank fails, the root cause is printed on stderr, the same line on every rank, and the process ends here:
// `body` may be deadlocked in a collective, and closing connections cleanly could wait for dead peers. The exit code is
// 2 when this rank's own error was a ConfigError, else 1. Throws ConfigError before the rendezvous when the name of
// rank 0's host does not resolve in time, and std::runtime_error when `stopped` returns true meanwhile.
void run_as_rank(const WorldSpec& spec, const CommConfig& config, const std::vector<std::string>& rank_coordinates,
                 const std::function<void(World&)>& body, const std::function<bool()>& stopped = {});

}  // namespace braid
