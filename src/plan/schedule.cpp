#include "plan/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "plan/rank_program.h"
#include "plan/shared_rank_program.h"

namespace braid {
namespace {

int pp_of(const Module& module) { return module.dense.size_of("pp"); }
const Module& module_of(const Topology& topology, const Stage& stage) {
  return topology.modules()[static_cast<std::size_t>(stage.module)];
}

int language_of(const Topology& topology) { return static_cast<int>(&topology.language() - topology.modules().data()); }

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

// Loads the batch of each forward before the forward or backward in front of it, during which the data arrive.
std::vector<Op> with_loads(const std::vector<Op>& program, const Topology& topology) {
  std::vector<Op> ops;
  const auto load = [&](const Op& op) {
    if (op.kind == Op::Forward && reads_batch(topology, op.stage)) ops.push_back({Op::Load, op.stage, op.microbatch});
  };
  const auto next = [&](auto from) {
    return std::find_if(from, program.end(), [](const Op& op) { return op.computes(); });
  };
  if (const auto first = next(program.begin()); first != program.end()) load(*first);
  for (auto op = program.begin(); op != program.end(); ++op) {
    if (op->computes())
      if (const auto after = next(op + 1); after != program.end()) load(*after);
    ops.push_back(*op);
  }
  return ops;
}

// Adds the start of the step, its update and the gathers of updated parameters. With overlap, the parameters of the
// last step arrive while this one begins: gathers start before everything else and end with the first forwards, whose
// layers await their own parameters. Otherwise parameters are gathered as part of the update.
std::vector<Op> with_update(std::vector<Op> program, const std::vector<Stage>& trained,
                            const ScheduleOptions& options) {
  std::vector<Op> ops;
  const bool overlaps = options.overlap_gather;
  for (std::size_t s = 0; overlaps && s < trained.size(); ++s) ops.push_back({Op::StartGather, trained[s]});
  ops.push_back({Op::Begin});
  for (Op& op : program) {
    const bool reads_first = overlaps && op.kind == Op::Forward && op.microbatch == 0 &&
                             std::find(trained.begin(), trained.end(), op.stage) != trained.end();
    const Stage stage = op.stage;
    ops.push_back(std::move(op));
    if (reads_first) ops.push_back({Op::EndGather, stage});
  }
  for (auto stage = trained.rbegin(); stage != trained.rend(); ++stage) ops.push_back({Op::EndReduce, *stage});
  ops.push_back({Op::Update});
  if (overlaps) return ops;
  for (const auto kind : {Op::StartGather, Op::EndGather})
    for (const Stage& stage : trained) ops.push_back({kind, stage});
  return ops;
}

std::vector<Op> program_of(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges,
                           int rank) {
  if (!topology.colocated()) return program_of_own_rank(topology, options, edges, rank);
  const std::vector<Round> language = language_rounds(topology, options, topology.language().dense.coord(rank, "pp"));
  return SharedRankProgram(topology, options, edges, rank, language).write();
}

std::vector<Op> list_of(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges,
                        int rank) {
  std::vector<Op> program = with_loads(program_of(topology, options, edges, rank), topology);
  if (!has_update(options)) {
    program.insert(program.begin(), {Op::Begin});
    return program;
  }
  std::vector<Stage> trained = stages_of(topology, rank);
  std::erase_if(trained, [&](const Stage& stage) { return !is_trained(topology, options, stage); });
  return with_update(std::move(program), trained, options);
}

}  // namespace

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options) {
  const std::vector<Edge> edges = make_edges(topology);
  Schedule schedule;
  for (int rank = 0; rank < topology.world_size(); ++rank)
    schedule.ranks.push_back(list_of(topology, options, edges, rank));
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
