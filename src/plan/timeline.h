// When each op of a schedule runs if forwards and backwards take given times and transfers take none: this is what the
// drawing shows, including where a stage waits. The ranks that share a stage of a replica compute together.
#pragma once

#include <string>
#include <vector>

#include "plan/player.h"

namespace braid {

struct StageCosts {  // of one module, per microbatch and stage, in any unit
  double forward = 1, backward = 2;
  std::string backward_note{};  // what a partial backward computes: "projector only"
};

// `costs`: by module, the time of a rank's forward or backward of one microbatch; a rank with several stages divides it
// equally among them. The schedule must be valid.
Play make_timeline(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs);

// One lane per rank, one box with the microbatch number per forward and backward, one colour per module and direction;
// under a lane, a line per gather and reduction while it may run beside the boxes.
// With too many ranks, the first of each stage gets a lane that represents all of them and is labelled so.
std::string draw_svg(const Schedule& schedule, const Topology& topology, const Play& timeline,
                     const std::vector<StageCosts>& costs);

}  // namespace braid
