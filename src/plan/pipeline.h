// The stages of all modules as one pipeline, which ranks run them, and the edges over which activations go from stage to
// stage and gradients come back.
//
// The encoders stand side by side and end together; the language model follows. A module with pp pipeline ranks has
// pp x vpp stages; stage s is on the ranks with pp coordinate s % pp, so with vpp > 1 (interleaving) a rank has several
// stages of one module.
#pragma once

#include <vector>

#include "plan/topology.h"

namespace braid {

struct Stage {
  int module = 0;  // index into topology.modules()
  int index = 0;   // of the module's stages
  bool operator==(const Stage&) const = default;
};

int stage_count(const Module& module);
bool is_last(const Topology& topology, const Stage& stage);

// What a rank runs: by module, then in the order of the pipeline.
std::vector<Stage> stages_of(const Topology& topology, int rank);

// The ranks of a stage are consecutive.
struct RankBlock {
  int first = 0, size = 0;
};
RankBlock ranks_of(const Topology& topology, const Stage& stage);
// The ranks of a stage that one rank has collectives with in a forward or backward (tensor, context, expert parallel).
RankBlock computes_with(const Topology& topology, const Stage& stage, int rank);
// Those of its replica.
RankBlock replica_of(const Topology& topology, const Stage& stage, int rank);

// Where activations go from one rank to another (or to itself, when modules share ranks); gradients come back.
struct Edge {
  Stage from;
  int from_rank;
  Stage to;
  int to_rank;
  bool crosses_modules() const { return from.module != to.module; }
};

// From each stage to the next, rank by rank; from the first rank of each encoder replica's last stage to the first rank
// of every language replica that has samples in common with it.
std::vector<Edge> make_edges(const Topology& topology);

// Those that end or begin at a stage on one rank, as indices, ascending.
std::vector<int> edges_into(const std::vector<Edge>& edges, const Stage& stage, int rank);
std::vector<int> edges_from(const std::vector<Edge>& edges, const Stage& stage, int rank);

}  // namespace braid
