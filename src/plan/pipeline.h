// The stages of all modules as one pipeline, the ranks that run them, and the edges that carry activations from stage
// to stage and gradients back.
//
// The encoders run side by side; the language model follows them. A module with pp pipeline ranks has pp x vpp stages.
// Stage s is on the ranks with pp coordinate s % pp, so with vpp > 1 (interleaving) a rank has several stages of one
// module.
#pragma once

#include <vector>

#include "plan/topology.h"

namespace braid {

struct Stage {
  int module = 0;  // index into topology.modules()
  int index = 0;   // among the module's stages
  bool operator==(const Stage&) const = default;
};

int stage_count(const Module& module);
bool is_last(const Topology& topology, const Stage& stage);
bool is_pipelined(const Topology& topology);  // a module has several pipeline ranks

// The stages that a rank runs: by module, then in pipeline order.
std::vector<Stage> stages_of(const Topology& topology, int rank);

// The ranks of a stage, which are consecutive.
struct RankBlock {
  int first = 0, size = 0;
};
RankBlock ranks_of(const Topology& topology, const Stage& stage);
// The ranks with which one rank of a stage has collectives in a forward or backward (tensor, context, expert parallel).
RankBlock computes_with(const Topology& topology, const Stage& stage, int rank);
// The ranks of its replica.
RankBlock replica_of(const Topology& topology, const Stage& stage, int rank);

// Carries activations from one rank to another (or to itself, when modules share ranks), and gradients back.
struct Edge {
  Stage from;
  int from_rank;
  Stage to;
  int to_rank;
  bool crosses_modules() const { return from.module != to.module; }
};

// From each stage to the next, rank by rank; from the first rank of each encoder replica's last stage to the first rank
// of every language replica that shares samples with it.
std::vector<Edge> make_edges(const Topology& topology);

// The edges that end or begin at a stage on one rank, as ascending indices.
std::vector<int> edges_into(const std::vector<Edge>& edges, const Stage& stage, int rank);
std::vector<int> edges_from(const std::vector<Edge>& edges, const Stage& stage, int rank);

}  // namespace braid
