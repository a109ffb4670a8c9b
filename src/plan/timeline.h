// When everything of a schedule happens if forwards and backwards take given times and transfers none: what the drawing
// shows, and where a stage waits. The ranks that share a stage of a replica compute together.
#pragma once

#include <string>
#include <vector>

#include "plan/player.h"

namespace braid {

struct StageCosts {  // of one module, per microbatch and stage, in any unit
  double forward = 1, backward = 2;
  std::string backward_note{};  // what a backward that is not a whole one computes: "projector only"
};

// `costs` by module: a rank's forward of a microbatch takes that long, with several stages in as many parts. The schedule
// must be sound.
Play make_timeline(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs);

// A lane per rank, a box per forward and backward with the number of its microbatch, one colour per module and
// direction. Where there are too many ranks, the first of each stage has a lane that stands for all of them, and says
// so.
std::string draw_svg(const Schedule& schedule, const Topology& topology, const Play& timeline,
                     const std::vector<StageCosts>& costs);

}  // namespace braid
