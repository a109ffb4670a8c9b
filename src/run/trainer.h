#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/save_lock.h"
#include "run/recipe.h"

namespace braid {

class World;
class Topology;

// What surrounds a run.
struct RunContext {
  const StopRequest& stop;
  bool launcher_listens = false;  // see RunFacts
  JobIdentity job{};
  std::function<void()> on_lost_output{};  // called at a good end where files that were asked for are not complete
  std::string held_lock{};                 // of the folder to save to, by the launcher: see SaveLock::Options
};

// Collective, before train(): whether any rank found something wrong before the start. Of those that did, the first
// rank prints it; nobody starts then.
bool refused_together(const std::vector<Problem>& problems, World& world);

// The training loop as one rank runs it: build, step, log, until the recipe's end or a request to stop. Returns the
// loss of every iteration. DataError when too many steps in a row had to be skipped.
std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context);

}  // namespace braid
