// A topology as tables and as JSON, and a schedule as a drawing.
#pragma once

#include "plan/player.h"
#include "plan/topology.h"

namespace braid {

// "images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)"
std::string topology_line(const Topology& topology);

// Modules with their sizes and ranks, every rank's coordinates, all groups in creation order. Large worlds are
// abbreviated: the first and last ranks of a module, the first groups of a kind.
std::string show_topology(const Topology& topology);

// A rank beyond the world is a ConfigError.
void check_rank(const Topology& topology, int global_rank);

// One rank, which is checked: its modules, its coordinates in both views, and each of its groups with all members.
std::string show_rank(const Topology& topology, int global_rank);

// Everything, unabbreviated:
//   {"world_size", "colocated",
//    "modules": [{"name", "kind", "rank_offset", "dense": {"tp", ...}, "expert": {"expt_tp", ...},
//                 "ranks": [{"global_rank", "dense": {"tp", ...}, "expert": {"expt_tp", ...}}]}],
//    "groups": [{"module", "key", "ranks": [...]}]}
std::string topology_json(const Topology& topology);

// --- the timeline of a schedule

struct StageCosts {  // of one module, per microbatch and stage, in any unit
  double forward = 1, backward = 2;
  std::string backward_note{};  // what a partial backward computes: "projector only"
};

// For drawings, in units of a stage's forward: a full backward takes 2, one without weight gradients takes 1. A
// projector is small compared with its encoder: where only the projector trains, its backward takes 0.25.
std::vector<StageCosts> stage_costs(const Topology& topology, const std::vector<std::string>& frozen);

// When each op runs if forwards and backwards take given times and transfers take none, as the drawing shows it. The
// ranks that share a stage of a replica compute together. `costs`: by module, the time of a rank's forward or backward
// of one microbatch, which its stages share equally. The schedule must be valid.
Play make_timeline(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs);

// One row per rank, one box with the microbatch number per forward and backward, one colour per module and direction;
// under a row, a line per gather and reduction while it may run beside the boxes.
// With too many ranks, the first of each stage gets a row that represents all of them and is labelled so.
std::string draw_svg(const Schedule& schedule, const Topology& topology, const Play& timeline,
                     const std::vector<StageCosts>& costs);

}  // namespace braid
