#include "plan/pipeline.h"

namespace braid {
namespace {

const Module& module_of(const Topology& topology, const Stage& stage) { return topology.module(stage.module); }

int pp_of(const Module& module) { return module.dense.size_of("pp"); }

}  // namespace

int index_of_language(const Topology& topology) {
  return static_cast<int>(&topology.language() - topology.modules().data());
}

int stage_count(const Module& module) { return pp_of(module) * module.vpp; }

bool is_last(const Topology& topology, const Stage& stage) {
  return stage.index == stage_count(module_of(topology, stage)) - 1;
}

bool is_pipelined(const Topology& topology) {
  return std::any_of(topology.modules().begin(), topology.modules().end(),
                     [](const Module& module) { return pp_of(module) > 1; });
}

std::vector<Stage> stages_of(const Topology& topology, int rank) {
  std::vector<Stage> stages;
  for (int m = 0; m < std::ssize(topology.modules()); ++m) {
    const Module& module = topology.module(m);
    if (!module.dense.contains(rank)) continue;
    for (const int index : stages_of(module, rank)) stages.push_back({m, index});
  }
  return stages;
}

std::vector<int> stages_of(const Module& module, int rank) {
  std::vector<int> stages;
  for (int index = module.dense.coord(rank, "pp"); index < stage_count(module); index += pp_of(module))
    stages.push_back(index);
  return stages;
}

std::vector<Stage> all_stages(const Topology& topology) {
  std::vector<Stage> stages;
  for (int m = 0; m < std::ssize(topology.modules()); ++m)
    for (int index = 0; index < stage_count(topology.module(m)); ++index) stages.push_back({m, index});
  return stages;
}

RankBlock ranks_of(const Topology& topology, const Stage& stage) {
  const Module& module = module_of(topology, stage);
  const int size = module.dense.size() / pp_of(module);
  return {module.dense.rank_offset() + stage.index % pp_of(module) * size, size};
}

std::vector<Edge> make_edges(const Topology& topology) {
  std::vector<Edge> edges;
  const auto& modules = topology.modules();
  const int language = index_of_language(topology);
  for (int m = 0; m < std::ssize(modules); ++m) {
    const Module& module = modules[m];
    const int pp = pp_of(module);
    for (const std::vector<int>& ranks : module.dense.groups({"pp"}))
      for (int s = 0; s + 1 < stage_count(module); ++s)
        edges.push_back({{m, s}, ranks[s % pp], {m, s + 1}, ranks[(s + 1) % pp]});
  }
  const Grid& to_grid = topology.language().dense;
  const int to_replicas = to_grid.size_of("dp");
  for (int m = 0; m < std::ssize(modules); ++m) {
    if (m == language) continue;
    const Module& module = modules[m];
    const int from_replicas = module.dense.size_of("dp");
    for (int from = 0; from < from_replicas; ++from)
      for (int to = 0; to < to_replicas; ++to)
        if (from * to_replicas < (to + 1) * from_replicas && to * from_replicas < (from + 1) * to_replicas)
          edges.push_back({{m, stage_count(module) - 1},
                           module.dense.rank_at({0, 0, from, pp_of(module) - 1}),
                           {language, 0},
                           to_grid.rank_at({0, 0, to, 0})});
  }
  return edges;
}

std::vector<std::vector<int>> edges_by_rank(const std::vector<Edge>& edges, std::size_t ranks) {
  std::vector<std::vector<int>> by_rank(ranks);
  for (int e = 0; e < std::ssize(edges); ++e) {
    by_rank[edges[e].from_rank].push_back(e);
    if (edges[e].crosses_ranks()) by_rank[edges[e].to_rank].push_back(e);
  }
  return by_rank;
}

std::vector<int> edges_into(const std::vector<Edge>& edges, const Stage& stage, int rank) {
  std::vector<int> found;
  for (int e = 0; e < std::ssize(edges); ++e)
    if (edges[e].ends_at(stage, rank)) found.push_back(e);
  return found;
}

std::vector<int> edges_from(const std::vector<Edge>& edges, const Stage& stage, int rank) {
  std::vector<int> found;
  for (int e = 0; e < std::ssize(edges); ++e)
    if (edges[e].begins_at(stage, rank)) found.push_back(e);
  return found;
}

Bridge::Bridge(const Topology& topology, const std::vector<Edge>& edges, std::int64_t samples)
    : topology_(topology), edges_(edges), samples_(samples) {}

SampleRange samples_of_replica(const Module& module, std::int64_t samples, int global_rank) {
  const int replicas = module.dense.size_of("dp");
  BRAID_CHECK_EQ(samples % replicas, 0, "samples of a microbatch");
  const std::int64_t each = samples / replicas, begin = module.dense.coord(global_rank, "dp") * each;
  return {begin, begin + each};
}

SampleRange Bridge::samples_of(int module, int global_rank) const {
  return samples_of_replica(topology_.module(module), samples_, global_rank);
}

SampleRange Bridge::shared_samples(int edge) const {
  const Edge& e = edges_[edge];
  const SampleRange from = samples_of(e.from.module, e.from_rank), to = samples_of(e.to.module, e.to_rank);
  return {std::max(from.begin, to.begin), std::min(from.end, to.end)};
}

EmbeddingSlice Bridge::slice(int edge, const std::vector<std::int64_t>& counts) const {
  const Edge& e = edges_[edge];
  const SampleRange shared = shared_samples(edge);
  const auto first = counts.begin() + (shared.begin - samples_of(e.from.module, e.from_rank).begin);
  const auto last = first + shared.size();
  return {{first, last},
          std::accumulate(counts.begin(), first, std::int64_t{0}),
          std::accumulate(first, last, std::int64_t{0})};
}

}  // namespace braid
