#include "plan/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace braid {
namespace {

int pp_of(const Module& module) { return module.dense.size_of("pp"); }

bool is_pipelined(const Topology& topology) {
  return std::any_of(topology.modules().begin(), topology.modules().end(),
                     [](const Module& module) { return pp_of(module) > 1; });
}

// How many stages come before the language model.
int encoder_stages(const Topology& topology) {
  int stages = 0;
  for (const Module& module : topology.modules())
    if (module.is_encoder) stages = std::max(stages, pp_of(module));
  return stages;
}

// The place of a stage in the one long pipeline, and its length.
int position_of(const Topology& topology, int module, int stage) {
  const Module& m = topology.modules()[static_cast<std::size_t>(module)];
  return encoder_stages(topology) + stage - (m.is_encoder ? pp_of(m) : 0);
}
int pipeline_length(const Topology& topology) { return encoder_stages(topology) + pp_of(topology.language()); }

int stage_of(const Topology& topology, int module, int rank) {
  return topology.modules()[static_cast<std::size_t>(module)].dense.coord(rank, "pp");
}

// The edges of one rank in one of its modules.
struct Ends {
  std::vector<int> in, out;
};

Ends ends_of(const std::vector<Edge>& edges, int module, int rank) {
  Ends ends;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (edges[i].to_module == module && edges[i].to_rank == rank) ends.in.push_back(static_cast<int>(i));
    if (edges[i].from_module == module && edges[i].from_rank == rank) ends.out.push_back(static_cast<int>(i));
  }
  return ends;
}

// Writes one rank's list.
class RankProgram {
 public:
  RankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges)
      : topology_(topology), options_(options), edges_(edges) {}

  std::vector<Op> take() { return std::move(ops_); }

  void forward(int module, int microbatch) { ops_.push_back({Op::Forward, module, microbatch}); }
  void backward(int module, int microbatch) { ops_.push_back({Op::Backward, module, microbatch}); }

  // The moves of one microbatch over the edges on one side of a stage.
  std::vector<Transfer> receive_inputs(const Ends& ends, int mb) const {
    return over(ends.in, Transfer::Activation, mb, false);
  }
  std::vector<Transfer> send_outputs(const Ends& ends, int mb) const {
    return over(ends.out, Transfer::Activation, mb, true);
  }
  std::vector<Transfer> receive_gradients(const Ends& ends, int mb) const {
    return over(ends.out, Transfer::Gradient, mb, false);
  }
  std::vector<Transfer> send_gradients(const Ends& ends, int mb) const {
    return over(ends.in, Transfer::Gradient, mb, true);
  }

  void exchange(std::vector<Transfer> transfers, std::vector<Transfer> more = {}) {
    transfers.insert(transfers.end(), more.begin(), more.end());
    if (!transfers.empty()) ops_.push_back({Op::Exchange, 0, 0, std::move(transfers)});
  }

  // One forward, one backward, after `warm_up` forwards.
  void one_forward_one_backward(int module, const Ends& ends, int warm_up) {
    const int count = options_.microbatches;
    warm_up = std::min(warm_up, count);
    for (int mb = 0; mb < warm_up; ++mb) {
      exchange(receive_inputs(ends, mb));
      forward(module, mb);
      exchange(send_outputs(ends, mb));
    }
    if (warm_up < count) exchange(receive_inputs(ends, warm_up));
    for (int mb = warm_up; mb < count; ++mb) {
      const int done = mb - warm_up;
      forward(module, mb);
      exchange(send_outputs(ends, mb), receive_gradients(ends, done));
      backward(module, done);
      exchange(send_gradients(ends, done), mb + 1 < count ? receive_inputs(ends, mb + 1) : std::vector<Transfer>());
    }
    for (int mb = count - warm_up; mb < count; ++mb) {
      exchange(receive_gradients(ends, mb));
      backward(module, mb);
      exchange(send_gradients(ends, mb));
    }
  }

  void only_forward(int module, const Ends& ends) {
    for (int mb = 0; mb < options_.microbatches; ++mb) {
      exchange(receive_inputs(ends, mb));
      forward(module, mb);
      exchange(send_outputs(ends, mb));
    }
  }

  // Runs each forward `ahead` microbatches before its result is sent; not the first, for which everybody waits. For
  // stages that need nobody's activations.
  void pull_forwards_ahead(int module, int ahead) {
    std::vector<Op> pulled;
    int next = 0;
    for (Op& op : ops_) {
      if (op.kind != Op::Forward) {
        pulled.push_back(std::move(op));
        continue;
      }
      const int last = op.microbatch == 0 ? 0 : std::min(op.microbatch + ahead, options_.microbatches - 1);
      for (; next <= last; ++next) pulled.push_back({Op::Forward, module, next});
    }
    ops_ = std::move(pulled);
  }

 private:
  std::vector<Transfer> over(const std::vector<int>& edges, Transfer::Kind kind, int mb, bool outgoing) const {
    std::vector<Transfer> transfers;
    for (const int index : edges) {
      const Edge& edge = edges_[static_cast<std::size_t>(index)];
      const bool stays = edge.from_rank == edge.to_rank;
      const bool goes_back =
          kind == Transfer::Activation ||
          is_trained(topology_, options_, edge.from_module, stage_of(topology_, edge.from_module, edge.from_rank));
      if (!stays && goes_back) transfers.push_back({kind, index, mb, outgoing});
    }
    return transfers;
  }

  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Edge>& edges_;
  std::vector<Op> ops_;
};

std::vector<Op> program_of_own_rank(const Topology& topology, const ScheduleOptions& options,
                                    const std::vector<Edge>& edges, int module, int rank) {
  RankProgram program(topology, options, edges);
  const Module& m = topology.modules()[static_cast<std::size_t>(module)];
  const Ends ends = ends_of(edges, module, rank);
  const int stage = stage_of(topology, module, rank);
  if (is_trained(topology, options, module, stage))
    program.one_forward_one_backward(module, ends,
                                     pipeline_length(topology) - 1 - position_of(topology, module, stage));
  else
    program.only_forward(module, ends);
  if (m.is_encoder && pp_of(m) == 1) program.pull_forwards_ahead(module, options.prefetch);
  return program.take();
}

// The edges between stages of one module, and those between modules.
Ends only(const Ends& ends, const std::vector<Edge>& edges, bool crossing) {
  const auto pick = [&](std::vector<int> list) {
    std::erase_if(list, [&](int i) { return edges[static_cast<std::size_t>(i)].crosses_modules() != crossing; });
    return list;
  };
  return {pick(ends.in), pick(ends.out)};
}

// Modules that share ranks take turns. Without pipelines this happens microbatch by microbatch, which holds the fewest
// activations; with them, module by module.
class SharedRankProgram {
 public:
  SharedRankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges, int rank)
      : topology_(topology), options_(options), rank_(rank), program_(topology, options, edges) {
    for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
      const Ends ends = ends_of(edges, m, rank);
      inside_.push_back(only(ends, edges, false));
      across_.push_back(only(ends, edges, true));
      if (topology.modules()[static_cast<std::size_t>(m)].is_encoder)
        encoders_.push_back(m);
      else
        language_ = m;
    }
  }

  std::vector<Op> write() {
    const auto for_each = [&](auto act) {
      for (int mb = 0; mb < options_.microbatches; ++mb) act(mb);
    };
    if (!is_pipelined(topology_)) {
      for_each([&](int mb) {
        encode(mb);
        cross(mb);
        program_.forward(language_, mb);
        program_.backward(language_, mb);
        cross_back(mb);
        encode_back(mb);
      });
      return program_.take();
    }
    for_each([&](int mb) { encode(mb); });
    for_each([&](int mb) { cross(mb); });
    const int warm_up = pp_of(topology_.language()) - 1 - stage_of(topology_, language_, rank_);
    program_.one_forward_one_backward(language_, inside(language_), warm_up);
    for_each([&](int mb) { cross_back(mb); });
    for_each([&](int mb) { encode_back(mb); });
    return program_.take();
  }

 private:
  const Ends& inside(int module) const { return inside_[static_cast<std::size_t>(module)]; }
  const Ends& across(int module) const { return across_[static_cast<std::size_t>(module)]; }

  void encode(int mb) {
    for (const int encoder : encoders_) {
      program_.exchange(program_.receive_inputs(inside(encoder), mb));
      program_.forward(encoder, mb);
      program_.exchange(program_.send_outputs(inside(encoder), mb));
    }
  }

  void cross(int mb) {
    std::vector<Transfer> all = program_.receive_inputs(across(language_), mb);
    for (const int encoder : encoders_)
      for (const Transfer& transfer : program_.send_outputs(across(encoder), mb)) all.push_back(transfer);
    program_.exchange(all);
  }

  void cross_back(int mb) {
    std::vector<Transfer> all = program_.send_gradients(across(language_), mb);
    for (const int encoder : encoders_)
      for (const Transfer& transfer : program_.receive_gradients(across(encoder), mb)) all.push_back(transfer);
    program_.exchange(all);
  }

  void encode_back(int mb) {
    for (const int encoder : encoders_) {
      if (!is_trained(topology_, options_, encoder, stage_of(topology_, encoder, rank_))) continue;
      program_.exchange(program_.receive_gradients(inside(encoder), mb));
      program_.backward(encoder, mb);
      program_.exchange(program_.send_gradients(inside(encoder), mb));
    }
  }

  const Topology& topology_;
  const ScheduleOptions& options_;
  const int rank_;
  RankProgram program_;
  std::vector<Ends> inside_, across_;  // by module: edges between its stages, and between modules
  std::vector<int> encoders_;
  int language_ = 0;
};

}  // namespace

bool is_trained(const Topology& topology, const ScheduleOptions& options, int module, int stage) {
  const Module& m = topology.modules()[static_cast<std::size_t>(module)];
  const auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), m.name) != names.end();
  };
  return !has(options.frozen) && (stage == pp_of(m) - 1 || !has(options.frozen_before_last_stage));
}

std::vector<Edge> make_edges(const Topology& topology) {
  std::vector<Edge> edges;
  const auto& modules = topology.modules();
  int language = 0;
  for (int m = 0; m < static_cast<int>(modules.size()); ++m) {
    const Module& module = modules[static_cast<std::size_t>(m)];
    if (!module.is_encoder) language = m;
    for (const std::vector<int>& stages : module.dense.groups({"pp"}))
      for (std::size_t s = 0; s + 1 < stages.size(); ++s) edges.push_back({m, stages[s], m, stages[s + 1]});
  }
  const Grid& to_grid = modules[static_cast<std::size_t>(language)].dense;
  const int to_replicas = to_grid.size_of("dp");
  for (int m = 0; m < static_cast<int>(modules.size()); ++m) {
    if (m == language) continue;
    const Grid& from_grid = modules[static_cast<std::size_t>(m)].dense;
    const int from_replicas = from_grid.size_of("dp");
    for (int from = 0; from < from_replicas; ++from)
      for (int to = 0; to < to_replicas; ++to)
        if (from * to_replicas < (to + 1) * from_replicas && to * from_replicas < (from + 1) * to_replicas)
          edges.push_back({m, from_grid.rank_at({0, 0, from, from_grid.size_of("pp") - 1}), language,
                           to_grid.rank_at({0, 0, to, 0})});
  }
  return edges;
}

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options) {
  const std::vector<Edge> edges = make_edges(topology);
  Schedule schedule;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    if (topology.colocated()) {
      schedule.ranks.push_back(SharedRankProgram(topology, options, edges, rank).write());
      continue;
    }
    const Module* mine = topology.modules_of(rank).front();
    const int module = static_cast<int>(mine - topology.modules().data());
    schedule.ranks.push_back(program_of_own_rank(topology, options, edges, module, rank));
  }
  return schedule;
}

Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options) {
  Schedule schedule = make_schedule(topology, options);
  const std::vector<std::string> problems = verify(schedule, topology, options);
  BRAID_CHECK(problems.empty(), "{}", fmt::join(problems, "; "));
  return schedule;
}

int microbatches_of(const Workload& workload, const Topology& topology) {
  const int samples = workload.micro_batch * topology.language().dense.size_of("dp");
  BRAID_CHECK_EQ(workload.global_batch % samples, 0, "samples of a step");
  return workload.global_batch / samples;
}

int max_in_flight(const Topology& topology, const ScheduleOptions& options, int module, int stage) {
  const Module& m = topology.modules()[static_cast<std::size_t>(module)];
  int limit = 1;
  if (!topology.colocated()) {
    limit = pipeline_length(topology) - position_of(topology, module, stage);
    if (m.is_encoder && pp_of(m) == 1) limit += options.prefetch;
  } else if (is_pipelined(topology)) {
    limit = m.is_encoder ? options.microbatches : pp_of(m) - stage;
  }
  return std::min(limit, options.microbatches);
}

}  // namespace braid
