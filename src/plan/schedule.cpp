#include "plan/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "plan/turns.h"

namespace braid {
namespace {

int pp_of(const Module& module) { return module.dense.size_of("pp"); }
const Module& module_of(const Topology& topology, const Stage& stage) {
  return topology.modules()[static_cast<std::size_t>(stage.module)];
}

bool is_pipelined(const Topology& topology) {
  return std::any_of(topology.modules().begin(), topology.modules().end(),
                     [](const Module& module) { return pp_of(module) > 1; });
}

int language_of(const Topology& topology) { return static_cast<int>(&topology.language() - topology.modules().data()); }

// Builds the list of one rank.
class RankProgram {
 public:
  enum Edges { All, InsideModules, BetweenModules };

  RankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges, int rank)
      : topology_(topology), options_(options), edges_(edges), rank_(rank) {
    for (int i = 0; i < static_cast<int>(edges.size()); ++i)
      if (edge(i).from_rank != edge(i).to_rank && (edge(i).from_rank == rank || edge(i).to_rank == rank))
        own_edges_.push_back({i, is_trained(topology, options, edge(i).from)});
  }

  // Appends the rounds in order, with their receives and sends; batches are loaded one round ahead.
  void run(const std::vector<Round>& rounds, Edges edges = All) {
    if (rounds.empty()) return;
    load(rounds.front());
    exchange(inputs_of(rounds.front(), edges));
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      const Round next = i + 1 < rounds.size() ? rounds[i + 1] : Round();
      load(next);
      ops_.insert(ops_.end(), rounds[i].begin(), rounds[i].end());
      exchange(outputs_of(rounds[i], edges), inputs_of(next, edges));
      if (edges == All) reduce_finished(rounds[i]);
    }
  }

  // Reduces the gradients of stages whose last backward is done, after sending what other ranks wait for.
  void reduce_finished(const Round& round) {
    for (const Op& op : round)
      if (op.kind == Op::Backward && op.microbatch + 1 == options_.microbatches) ops_.push_back({Op::Reduce, op.stage});
  }

  void exchange(std::vector<Transfer> transfers, const std::vector<Transfer>& more = {}) {
    transfers.insert(transfers.end(), more.begin(), more.end());
    if (!transfers.empty()) ops_.push_back({.kind = Op::Exchange, .transfers = std::move(transfers)});
  }

  std::vector<Transfer> inputs_of(const Round& round, Edges edges) const { return over(round, edges, false); }
  std::vector<Transfer> outputs_of(const Round& round, Edges edges) const { return over(round, edges, true); }

  // Runs each forward `ahead` microbatches before its result is sent, except the first, which all other stages wait
  // for. Only for stages that receive no activations.
  void pull_forwards_ahead(int ahead) {
    std::vector<Op> pulled;
    int next = 0;
    for (Op& op : ops_) {
      if (op.kind == Op::Load) continue;
      if (op.kind != Op::Forward) {
        pulled.push_back(std::move(op));
        continue;
      }
      const int last = op.microbatch == 0 ? 0 : std::min(op.microbatch + ahead, options_.microbatches - 1);
      for (; next <= last; ++next) {
        pulled.push_back({Op::Load, op.stage, next});
        pulled.push_back({Op::Forward, op.stage, next});
      }
    }
    ops_ = std::move(pulled);
  }

  std::vector<Op> take() { return std::move(ops_); }

 private:
  const Edge& edge(int i) const { return edges_[static_cast<std::size_t>(i)]; }

  void load(const Round& round) {
    for (const Op& op : round)
      if (op.kind == Op::Forward && reads_batch(topology_, op.stage))
        ops_.push_back({Op::Load, op.stage, op.microbatch});
  }

  // A forward receives the activations of the previous stages and sends its own; a backward does the same with
  // gradients in the opposite direction.
  std::vector<Transfer> over(const Round& round, Edges edges, bool outgoing) const {
    std::vector<Transfer> transfers;
    for (const Op& op : round) add_transfers(op, edges, outgoing, transfers);
    return transfers;
  }
  void add_transfers(const Op& op, Edges edges, bool outgoing, std::vector<Transfer>& transfers) const {
    const bool forward = op.kind == Op::Forward, from_here = forward == outgoing;
    for (const auto& [i, carries_gradients] : own_edges_) {
      if ((from_here ? edge(i).from : edge(i).to) != op.stage) continue;
      if ((from_here ? edge(i).from_rank : edge(i).to_rank) != rank_) continue;
      if (edges != All && edge(i).crosses_modules() != (edges == BetweenModules)) continue;
      if (!forward && !carries_gradients) continue;
      transfers.push_back({forward ? Transfer::Activation : Transfer::Gradient, i, op.microbatch, outgoing});
    }
  }

  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Edge>& edges_;
  const int rank_;
  struct OwnEdge {
    int index;
    bool carries_gradients;
  };
  std::vector<OwnEdge> own_edges_;  // between this rank and other ranks
  std::vector<Op> ops_;
};

std::vector<Round> only_forwards(const std::vector<Stage>& stages, int microbatches) {
  std::vector<Round> rounds;
  for (int mb = 0; mb < microbatches; ++mb)
    for (const Stage& stage : stages) rounds.push_back({{Op::Forward, stage, mb}});
  return rounds;
}

std::vector<Round> language_rounds(const Topology& topology, const ScheduleOptions& options, int pp_rank) {
  const Module& module = topology.language();
  const int m = language_of(topology), pp = pp_of(module);
  if (options.forward_only) {
    std::vector<Stage> stages;
    for (int s = pp_rank; s < stage_count(module); s += pp) stages.push_back({m, s});
    return only_forwards(stages, options.microbatches);
  }
  return module.vpp > 1 ? interleaved(m, pp, module.vpp, pp_rank, options.microbatches)
                        : one_forward_one_backward({m, pp_rank}, options.microbatches, pp - 1 - pp_rank);
}

std::vector<Round> encoder_rounds(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  if (!is_trained(topology, options, stage)) return only_forwards({stage}, options.microbatches);
  Stage next = {language_of(topology), 0};
  std::vector<Round> rounds = language_rounds(topology, options, 0);
  for (int s = stage_count(module_of(topology, stage)) - 1; s >= stage.index; --s) {
    rounds = rounds_before({stage.module, s}, next, rounds, options.microbatches);
    next = {stage.module, s};
  }
  return rounds;
}

std::vector<Op> program_of_own_rank(const Topology& topology, const ScheduleOptions& options,
                                    const std::vector<Edge>& edges, int rank) {
  RankProgram program(topology, options, edges, rank);
  const Stage first = stages_of(topology, rank).front();
  const Module& module = module_of(topology, first);
  program.run(module.is_encoder ? encoder_rounds(topology, options, first)
                                : language_rounds(topology, options, first.index));
  if (module.is_encoder && pp_of(module) == 1 && options.prefetch > 0) program.pull_forwards_ahead(options.prefetch);
  return program.take();
}

// Colocated modules take turns: without pipelines for every microbatch, which holds the fewest activations; with
// pipelines module by module. All ranks exchange between modules at the same time, so that no rank waits for another's
// turn.
class SharedRankProgram {
 public:
  SharedRankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges, int rank)
      : topology_(topology), options_(options), rank_(rank), program_(topology, options, edges, rank) {
    for (const Stage& stage : stages_of(topology, rank))
      if (module_of(topology, stage).is_encoder) encoders_.push_back(stage);
  }

  std::vector<Op> write() {
    const int last = options_.microbatches - 1;
    if (!is_pipelined(topology_)) {
      for (int mb = 0; mb <= last; ++mb) {
        encode(mb);
        cross(mb);
        program_.run({{first_forward(mb)}}, RankProgram::InsideModules);
        if (options_.forward_only) continue;
        program_.run({{last_backward(mb)}}, RankProgram::InsideModules);
        cross_back(mb);
        program_.reduce_finished({last_backward(mb)});
        encode_back(mb);
      }
      return program_.take();
    }
    for (int mb = 0; mb <= last; ++mb) encode(mb);
    for (int mb = 0; mb <= last; ++mb) cross(mb);
    const std::vector<Round> rounds =
        language_rounds(topology_, options_, topology_.language().dense.coord(rank_, "pp"));
    program_.run(rounds, RankProgram::InsideModules);
    for (int mb = 0; mb <= last; ++mb) cross_back(mb);
    for (const Round& round : rounds) program_.reduce_finished(round);
    for (int mb = 0; mb <= last; ++mb) encode_back(mb);
    return program_.take();
  }

 private:
  Op first_forward(int mb) const { return {Op::Forward, {language_of(topology_), 0}, mb}; }
  Op last_backward(int mb) const { return {Op::Backward, {language_of(topology_), 0}, mb}; }

  void encode(int mb) {
    for (const Stage& stage : encoders_) program_.run({{{Op::Forward, stage, mb}}}, RankProgram::InsideModules);
  }
  void encode_back(int mb) {
    for (const Stage& stage : encoders_)
      if (is_trained(topology_, options_, stage)) {
        program_.run({{{Op::Backward, stage, mb}}}, RankProgram::InsideModules);
        program_.reduce_finished({{Op::Backward, stage, mb}});
      }
  }

  void cross(int mb) {
    std::vector<Transfer> all = program_.inputs_of({first_forward(mb)}, RankProgram::BetweenModules);
    for (const Stage& stage : encoders_)
      for (const Transfer& t : program_.outputs_of({{Op::Forward, stage, mb}}, RankProgram::BetweenModules))
        all.push_back(t);
    program_.exchange(all);
  }
  void cross_back(int mb) {
    std::vector<Transfer> all = program_.outputs_of({last_backward(mb)}, RankProgram::BetweenModules);
    for (const Stage& stage : encoders_)
      for (const Transfer& t : program_.inputs_of({{Op::Backward, stage, mb}}, RankProgram::BetweenModules))
        all.push_back(t);
    program_.exchange(all);
  }

  const Topology& topology_;
  const ScheduleOptions& options_;
  const int rank_;
  RankProgram program_;
  std::vector<Stage> encoders_;
};

// Puts the agreement on sizes first, a stage's parameter gather before its first forward, and the update last.
std::vector<Op> with_updates(const std::vector<Op>& program, const Topology& topology, const ScheduleOptions& options) {
  std::vector<Op> ops = {{Op::Agree}};
  for (const Op& op : program) {
    if (op.kind == Op::Forward && op.microbatch == 0 && is_trained(topology, options, op.stage))
      ops.push_back({Op::Gather, op.stage});
    ops.push_back(op);
  }
  if (!options.forward_only) ops.push_back({Op::Update});
  return ops;
}

}  // namespace

bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const std::string& name = module_of(topology, stage).name;
  return !options.forward_only && !contains(options.frozen, name) &&
         (is_last(topology, stage) || !contains(options.frozen_before_last_stage, name));
}

bool reads_batch(const Topology& topology, const Stage& stage) {
  return stage.index == 0 || (!module_of(topology, stage).is_encoder && is_last(topology, stage));
}

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options) {
  const std::vector<Edge> edges = make_edges(topology);
  Schedule schedule;
  for (int rank = 0; rank < topology.world_size(); ++rank)
    schedule.ranks.push_back(with_updates(topology.colocated()
                                              ? SharedRankProgram(topology, options, edges, rank).write()
                                              : program_of_own_rank(topology, options, edges, rank),
                                          topology, options));
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

int max_in_flight(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const Module& module = module_of(topology, stage);
  const Module& language = topology.language();
  if (topology.colocated() && module.is_encoder) return is_pipelined(topology) ? options.microbatches : 1;
  const auto in_language = [&](int index) {
    const int pp = pp_of(language);
    return language.vpp > 1 ? interleaved_in_flight(pp, language.vpp, index % pp, index / pp, options.microbatches)
                            : pp - index;
  };
  const int ahead = stage_count(module) - stage.index + (pp_of(module) == 1 ? options.prefetch : 0);
  return std::min(module.is_encoder ? in_language(0) + ahead : in_language(stage.index), options.microbatches);
}

}  // namespace braid
