// The stages of all modules as one pipeline, the ranks that run them, and the edges that carry activations from stage
// to stage and gradients back.
//
// The encoders run side by side; the language model follows them. A module with pp pipeline ranks has pp x vpp stages.
// Stage s is on the ranks with pp coordinate s % pp, so with vpp > 1 (interleaving) a rank has several stages of one
// module.
#pragma once

#include "plan/topology.h"

namespace braid {

struct Stage {
  int module = 0;  // index into topology.modules()
  int index = 0;   // among the module's stages
  bool operator==(const Stage&) const = default;
};

int index_of_language(const Topology& topology);
int stage_count(const Module& module);
bool is_last(const Topology& topology, const Stage& stage);
bool is_pipelined(const Topology& topology);  // a module has several pipeline ranks

// By module, then in pipeline order: the stages that a rank runs, of all modules or of one, and all stages.
std::vector<Stage> stages_of(const Topology& topology, int rank);
std::vector<int> stages_of(const Module& module, int rank);
std::vector<Stage> all_stages(const Topology& topology);

// The ranks of a stage, which are consecutive.
struct RankBlock {
  int first = 0, size = 0;

  struct Iterator {
    int rank;
    int operator*() const { return rank; }
    void operator++() { ++rank; }
    bool operator==(const Iterator&) const = default;
  };
  Iterator begin() const { return {first}; }
  Iterator end() const { return {first + size}; }
};
RankBlock ranks_of(const Topology& topology, const Stage& stage);

// Carries activations from one rank to another (or to itself, when modules share ranks), and gradients back.
struct Edge {
  Stage from;
  int from_rank;
  Stage to;
  int to_rank;
  bool crosses_modules() const { return from.module != to.module; }
  bool crosses_ranks() const { return from_rank != to_rank; }
  int peer_of(int rank) const { return from_rank == rank ? to_rank : from_rank; }
  bool begins_at(const Stage& stage, int rank) const { return from == stage && from_rank == rank; }
  bool ends_at(const Stage& stage, int rank) const { return to == stage && to_rank == rank; }
};

// From each stage to the next, rank by rank; from the first rank of each encoder replica's last stage to the first rank
// of every language replica that shares samples with it.
std::vector<Edge> make_edges(const Topology& topology);

// Ascending indices of edges: those at each rank, and those that end or begin at a stage on one rank.
std::vector<std::vector<int>> edges_by_rank(const std::vector<Edge>& edges, std::size_t ranks);
std::vector<int> edges_into(const std::vector<Edge>& edges, const Stage& stage, int rank);
std::vector<int> edges_from(const std::vector<Edge>& edges, const Stage& stage, int rank);

// --- embeddings between modules

// Consecutive samples of a microbatch.
struct SampleRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// The samples that the rank's replica holds of a microbatch of `samples`.
SampleRange samples_of_replica(const Module& module, std::int64_t samples, int global_rank);

// The slice of its replica's embeddings that the encoder's end of an edge sends, or receives the gradient of.
struct EmbeddingSlice {
  std::vector<std::int64_t> counts;  // embeddings of each sample
  std::int64_t begin = 0, rows = 0;
};

// Which embeddings of an encoder's output go over which edge to the language model, for one microbatch. The replicas of
// each module hold equal shares of the samples in dp order, and an edge carries the samples that both its ends hold.
class Bridge {
 public:
  // `samples`: per microbatch, over all language replicas.
  Bridge(const Topology& topology, const std::vector<Edge>& edges, std::int64_t samples);

  // The samples of the replica to which a rank of a module belongs.
  SampleRange samples_of(int module, int global_rank) const;
  SampleRange shared_samples(int edge) const;

  // `counts`: embeddings of each sample of the edge's encoder replica.
  EmbeddingSlice slice(int edge, const std::vector<std::int64_t>& counts) const;

 private:
  const Topology& topology_;
  const std::vector<Edge>& edges_;
  const std::int64_t samples_;
};

}  // namespace braid
