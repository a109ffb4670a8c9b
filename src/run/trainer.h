#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/save_lock.h"
#include "run/recipe.h"

namespace braid {

class World;
class Topology;

// The environment of a run.
struct RunContext {
  const StopRequest& stop;
  bool under_braid_launcher = false;  // see RunFacts
  JobIdentity job{};
  std::function<void()> on_lost_output{};    // called at a successful end if requested output files are incomplete
  std::function<void(StopReason)> on_end{};  // called at a successful end with its reason
  std::string held_lock{};                   // the launcher's lock of the save folder: see SaveLock::Options
};

// Collective, to be called before train(): whether any rank has problems. If so, the first such rank prints its
// problems, and no rank may start.
bool any_rank_refused(const std::vector<Problem>& problems, World& world);

// The training loop of one rank: build, step, log, until the recipe's end or a request to stop. Returns the loss of
// every iteration. DataError if too many steps in a row were skipped.
std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context);

}  // namespace braid
