// Layouts of one module, with a layer's ranks run as threads. Every rank returns what it computed; tests then check the
// results of all ranks together.
#pragma once

#include <ATen/core/Tensor.h>
#include <ostream>
#include "nn/parallel.h"
#include "plan/param_spec.h"
#include "plan/topology.h"
#include "support/ranks.h"

namespace braid::testing {

struct Layout {
  int tp = 1, cp = 1, ep = 1, expt_tp = 1, pp = 1, dp = 1, vpp = 1;
  bool sp = false;
  bool recompute = false;
  OverlapConfig overlap{};
  int ranks() const { return tp * cp * pp * dp; }
};

inline std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  out << "tp" << layout.tp << "_cp" << layout.cp << "_ep" << layout.ep << "_expttp" << layout.expt_tp << "_pp"
      << layout.pp << "_dp" << layout.dp;
  if (layout.vpp > 1) out << "_vpp" << layout.vpp;
  out << (layout.sp ? "_sp" : "") << (layout.recompute ? "_recompute" : "");
  if (layout.overlap.tp_pieces > 1) out << "_pieces" << layout.overlap.tp_pieces;
  if (layout.overlap.expert_pieces > 1) out << "_expertpieces" << layout.overlap.expert_pieces;
  return out;
}

inline ModuleConfig module_of(const Layout& layout, const std::string& name) {
  ModuleConfig module;
  module.name = name;
  module.tp = layout.tp;
  module.cp = layout.cp;
  module.ep = layout.ep;
  module.expt_tp = layout.expt_tp;
  module.pp = layout.pp;
  module.dp = layout.dp;
  module.vpp = layout.vpp;
  return module;
}

// With only the language module.
inline Topology topology_of(const Layout& layout, int num_experts = 8) {
  TopologyConfig config;
  config.modules = {module_of(layout, "language")};
  return Topology(config, {.micro_batch = 1, .global_batch = layout.dp, .num_experts = num_experts});
}

struct Rank {
  const Parallel& parallel;
  int replica;  // its coordinate in dp
  const Group& world;

  // This rank's rows of a replica, outside (t) and inside (T / cp) of tensor-parallel regions.
  at::Tensor rows_outside(const at::Tensor& all) const {
    const at::Tensor inside = rows_inside(all);
    return parallel.sequence_parallel ? inside.chunk(parallel.tp.size(), 0)[parallel.tp.rank()] : inside;
  }
  at::Tensor rows_inside(const at::Tensor& all) const { return all.chunk(parallel.cp.size(), 0)[parallel.cp.rank()]; }
  at::Tensor tp_part(const at::Tensor& whole, std::int64_t dim) const {
    return whole.chunk(parallel.tp.size(), dim)[parallel.tp.rank()];
  }
  ShardCoordinates coordinates() const {
    return {parallel.tp.rank(), parallel.tp.size(),      parallel.ep.rank(),
            parallel.ep.size(), parallel.expt_tp.rank(), parallel.expt_tp.size()};
  }
};

// What `body` returns on each rank, by global rank.
template <class Body>
auto on_layout(const Layout& layout, const Body& body) {
  std::vector<std::invoke_result_t<Body, const Rank&>> results(static_cast<std::size_t>(layout.ranks()));
  on_threads(
      layout.ranks(),
      [&](World& world) {
        const Topology topology = topology_of(layout);
        const Groups groups(world, topology);
        const Parallel parallel = make_parallel(groups, "language", layout.sp, layout.overlap);
        results[static_cast<std::size_t>(world.rank())] =
            body(Rank{parallel, topology.language().dense.coord(world.rank(), "dp"), groups.world()});
      },
      ThreadSemantics::OneQueue);
  return results;
}

}  // namespace braid::testing
