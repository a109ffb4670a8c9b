// When everything of a schedule happens if forwards and backwards take given times and transfers none: what the drawing
// shows, and where a stage waits. The ranks that share a stage of a replica compute together.
#pragma once

#include <string>
#include <vector>

#include "plan/schedule.h"

namespace braid {

struct StageCosts {  // of one module, per microbatch and stage, in any unit
  double forward = 1, backward = 2;
  std::string backward_note{};  // what a backward that is not a whole one computes: "projector only"
};

struct OpSpan {
  double begin = 0, end = 0;  // of an op; an exchange ends when all its transfers have met
};

struct Timeline {
  std::vector<std::vector<OpSpan>> ranks;  // as schedule.ranks
  double end = 0;
};

// `costs` by module. The schedule must be sound.
Timeline make_timeline(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs);

// A lane per rank, a box per forward and backward with the number of its microbatch, one colour per module and
// direction. Where there are too many ranks, the first of each stage has a lane that stands for all of them, and says
// so.
std::string draw_svg(const Schedule& schedule, const Topology& topology, const Timeline& timeline,
                     const std::vector<StageCosts>& costs);

}  // namespace braid
