#include "plan/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "plan/transfer_order.h"

namespace braid {
namespace {

// The stage (chunk) and the microbatch of the n-th forward of a pipeline rank, counted over all its stages, if
// microbatches go through them in groups of `together`.
struct Turn {
  int chunk, microbatch;
};
Turn nth_forward(int n, int together, int vpp) {
  const int group = n / (together * vpp), within = n % (together * vpp);
  return {within / together, group * together + within % together};
}

int interleaved_warm_up(int pp, int vpp, int pp_rank, int microbatches) {
  return std::min(2 * (pp - 1 - pp_rank) + (vpp - 1) * pp, microbatches * vpp);
}

// 1F1B: one forward, one backward, after `warm_up` forwards.
std::vector<Op> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up) {
  std::vector<Op> turns;
  for (int n = 0; n < microbatches + warm_up; ++n) {
    if (n < microbatches) turns.push_back({Op::Forward, stage, n});
    if (n >= warm_up) turns.push_back({Op::Backward, stage, n - warm_up});
  }
  return turns;
}

// Megatron's interleaving: microbatches go through a rank's stages in groups of pp, and after a warm-up each forward is
// followed by a backward. `microbatches` must be 1 or a multiple of pp.
std::vector<Op> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches) {
  const int warm_up = interleaved_warm_up(pp, vpp, pp_rank, microbatches), count = microbatches * vpp;
  const int together = std::min(pp, microbatches);
  const auto stage = [&](int chunk) { return Stage{module, chunk * pp + pp_rank}; };
  std::vector<Op> turns;
  for (int n = 0; n < count + warm_up; ++n) {
    const Turn forward = nth_forward(n, together, vpp), backward = nth_forward(n - warm_up, together, vpp);
    if (n < count) turns.push_back({Op::Forward, stage(forward.chunk), forward.microbatch});
    if (n >= warm_up) turns.push_back({Op::Backward, stage(vpp - 1 - backward.chunk), backward.microbatch});
  }
  return turns;
}

// The turns of a stage that feeds `next`, whose rank runs `turns`: one forward further ahead.
std::vector<Op> turns_before(const Stage& stage, const Stage& next, const std::vector<Op>& turns, int microbatches) {
  std::vector<Op> before = {{Op::Forward, stage, 0}};
  for (const Op& op : turns) {
    if (op.stage != next) continue;
    const int microbatch = op.kind == Op::Forward ? op.microbatch + 1 : op.microbatch;
    if (microbatch < microbatches) before.push_back({op.kind, stage, microbatch});
  }
  return before;
}

// Runs each forward but the first, for which all other stages wait, `ahead` microbatches earlier. Only for stages that
// receive no activations.
std::vector<Op> with_forwards_ahead(const std::vector<Op>& turns, int ahead, int microbatches) {
  std::vector<Op> earlier;
  int next = 0;
  for (const Op& op : turns) {
    if (op.kind != Op::Forward) {
      earlier.push_back(op);
      continue;
    }
    const int last = op.microbatch == 0 ? 0 : std::min(op.microbatch + ahead, microbatches - 1);
    for (; next <= last; ++next) earlier.push_back({Op::Forward, op.stage, next});
  }
  return earlier;
}

// The most microbatches that the k-th of vpp stages on a pipeline rank holds in flight under interleaved().
// The maximum is reached just before the chunk's first backward.
int interleaved_in_flight(int pp, int vpp, int pp_rank, int chunk, int microbatches) {
  const int together = std::min(pp, microbatches);
  const int last = interleaved_warm_up(pp, vpp, pp_rank, microbatches) + (vpp - 1 - chunk) * together;
  int held = 0;
  for (int n = 0; n <= std::min(last, microbatches * vpp - 1); ++n)
    held += nth_forward(n, together, vpp).chunk == chunk;
  return held;
}

int pp_of(const Module& module) { return module.dense.size_of("pp"); }
const Module& module_of(const Topology& topology, const Stage& stage) { return topology.module(stage.module); }

std::vector<Op> only_forwards(const std::vector<Stage>& stages, int microbatches) {
  std::vector<Op> turns;
  for (int mb = 0; mb < microbatches; ++mb)
    for (const Stage& stage : stages) turns.push_back({Op::Forward, stage, mb});
  return turns;
}

std::vector<Op> language_turns(const Topology& topology, const ScheduleOptions& options, int pp_rank) {
  const Module& module = topology.language();
  const int m = index_of_language(topology), pp = pp_of(module);
  if (options.forward_only) {
    std::vector<Stage> stages;
    for (int s = pp_rank; s < stage_count(module); s += pp) stages.push_back({m, s});
    return only_forwards(stages, options.microbatches);
  }
  return module.vpp > 1 ? interleaved(m, pp, module.vpp, pp_rank, options.microbatches)
                        : one_forward_one_backward({m, pp_rank}, options.microbatches, pp - 1 - pp_rank);
}

std::vector<Op> encoder_turns_without_prefetch(const Topology& topology, const ScheduleOptions& options,
                                               const Stage& stage) {
  if (!is_trained(topology, options, stage)) return only_forwards({stage}, options.microbatches);
  Stage next = {index_of_language(topology), 0};
  std::vector<Op> turns = language_turns(topology, options, 0);
  for (int s = stage_count(module_of(topology, stage)) - 1; s >= stage.index; --s) {
    turns = turns_before({stage.module, s}, next, turns, options.microbatches);
    next = {stage.module, s};
  }
  return turns;
}

std::vector<Op> encoder_turns(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const std::vector<Op> turns = encoder_turns_without_prefetch(topology, options, stage);
  if (pp_of(module_of(topology, stage)) > 1) return turns;
  return with_forwards_ahead(turns, options.prefetch, options.microbatches);
}

// The turns of a rank that colocated modules share. Without pipelines the modules change after every microbatch,
// because this holds the fewest activations; with pipelines, each module runs all its microbatches.
std::vector<Op> shared_turns(const Topology& topology, const ScheduleOptions& options, int rank) {
  const int language = index_of_language(topology);
  std::vector<Op> turns;
  const auto encode = [&](Op::Kind kind, int microbatch) {
    for (const Stage& stage : stages_of(topology, rank))
      if (stage.module != language && (kind == Op::Forward || is_trained(topology, options, stage)))
        turns.push_back({kind, stage, microbatch});
  };
  if (is_pipelined(topology)) {
    for (int mb = 0; mb < options.microbatches; ++mb) encode(Op::Forward, mb);
    const int pp_rank = topology.language().dense.coord(rank, "pp");
    for (const Op& op : language_turns(topology, options, pp_rank)) turns.push_back(op);
    for (int mb = 0; mb < options.microbatches; ++mb) encode(Op::Backward, mb);
    return turns;
  }
  for (int mb = 0; mb < options.microbatches; ++mb) {
    encode(Op::Forward, mb);
    turns.push_back({Op::Forward, {language, 0}, mb});
    if (options.forward_only) continue;
    turns.push_back({Op::Backward, {language, 0}, mb});
    encode(Op::Backward, mb);
  }
  return turns;
}

// Starts the reduction of a stage's gradients after its last backward; with overlap before it, to run during it.
std::vector<Op> with_reductions(const std::vector<Op>& turns, const ScheduleOptions& options) {
  if (!has_update(options)) return turns;
  std::vector<Op> ops;
  for (const Op& op : turns) {
    const bool is_last = op.kind == Op::Backward && op.microbatch + 1 == options.microbatches;
    if (is_last && options.overlap_reduce) ops.push_back({Op::StartReduce, op.stage});
    ops.push_back(op);
    if (is_last && !options.overlap_reduce) ops.push_back({Op::StartReduce, op.stage});
  }
  return ops;
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

std::vector<Op> list_of(const std::vector<Op>& with_transfers, const Topology& topology, const ScheduleOptions& options,
                        int rank) {
  std::vector<Op> program = with_loads(with_transfers, topology);
  if (!has_update(options)) {
    program.insert(program.begin(), {Op::Begin});
    return program;
  }
  std::vector<Stage> trained = stages_of(topology, rank);
  std::erase_if(trained, [&](const Stage& stage) { return !is_trained(topology, options, stage); });
  return with_update(std::move(program), trained, options);
}

}  // namespace

std::vector<Op> turns_of(const Topology& topology, const ScheduleOptions& options, int rank) {
  if (topology.colocated()) return shared_turns(topology, options, rank);
  const Stage first = stages_of(topology, rank).front();
  return module_of(topology, first).is_encoder ? encoder_turns(topology, options, first)
                                               : language_turns(topology, options, first.index);
}

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options) {
  std::vector<std::vector<Op>> lists;
  for (int rank = 0; rank < topology.world_size(); ++rank)
    lists.push_back(with_reductions(turns_of(topology, options, rank), options));
  lists = with_transfers(lists, topology, options, make_edges(topology));
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    std::vector<Op>& list = lists[rank];
    list = list_of(list, topology, options, rank);
  }
  return {std::move(lists)};
}

Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options) {
  Schedule schedule = make_schedule(topology, options);
  const std::vector<std::string> problems = verify(schedule, topology, options);
  BRAID_CHECK(problems.empty(), "{}", joined(problems, "; "));
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

StepPlan::StepPlan(const Topology& topology, const ScheduleOptions& options)
    : options(options), edges(make_edges(topology)), schedule(verified_schedule(topology, options)) {}

}  // namespace braid
