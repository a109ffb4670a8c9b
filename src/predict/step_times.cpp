#include "predict/step_times.h"

#include <algorithm>

namespace braid {
namespace {

bool is_fp8(const LanguageConfig& config) {
  const auto* hybrid = std::get_if<HybridLmConfig>(&config);
  return hybrid && hybrid->fp8 == Fp8Mode::Rowwise;
}

double seconds(const Collectives& collectives, GroupTimes& groups) {
  double sum = 0;
  for (const Collective& collective : collectives) sum += groups.seconds(collective);
  return sum;
}

// Backward completes the buckets of one group in sequence, and those of different groups concurrently.
std::vector<OptimizerTimes::OfStage::Bucket> reductions_of(const Collectives& buckets, GroupTimes& groups) {
  std::map<std::string, double> bytes, completed;
  for (const Collective& bucket : buckets) bytes[bucket.group] += static_cast<double>(bucket.bytes);
  std::vector<OptimizerTimes::OfStage::Bucket> reductions;
  for (const Collective& bucket : buckets) {
    completed[bucket.group] += static_cast<double>(bucket.bytes);
    reductions.push_back({completed[bucket.group] / bytes[bucket.group], groups.seconds(bucket)});
  }
  std::ranges::stable_sort(reductions, {}, &OptimizerTimes::OfStage::Bucket::completed);
  return reductions;
}

}  // namespace

const OptimizerTimes::OfStage& OptimizerTimes::of_stage(const Stage& stage) {
  const auto [found, is_new] = stages_.try_emplace({stage.module, stage.index});
  OfStage& times = found->second;
  if (!is_new) return times;
  const Module& module = world_.modules[stage.module];
  const int rank = world_.full_rank(stage.module, ranks_of(world_.topology, stage).first);
  const RankOptimizers optimizers(setup_, world_.modules, rank);
  GroupTimes groups(module, rank, hardware_);
  times.reductions = reductions_of(optimizers.reductions(stage), groups);
  times.gathers = seconds(optimizers.gathers(stage), groups);
  if (!times.reductions.empty()) times.last_gathered = times.reductions.front().completed;
  times.replica_sums = collectives_time(optimizers.replica_sums(stage), groups);
  return times;
}

double OptimizerTimes::update_of(int m, int rank) {
  std::vector<std::pair<int, int>> stages;
  for (const Stage& stage : stages_of(world_.topology, rank))
    if (stage.module == m) stages.emplace_back(m, stage.index);
  const auto [found, is_new] = updates_.try_emplace(std::move(stages), 0);
  if (!is_new) return found->second;
  const std::vector<Module> alone = {world_.modules[m]};
  const OptimizerElements elements = RankOptimizers(setup_, alone, world_.full_rank(m, rank)).elements();
  const bool is_in_fp8 = !alone[0].is_encoder && is_fp8(setup_.model.language);
  const UpdateSizes sizes = {.updated = static_cast<double>(elements.updated),
                             .fp8 = is_in_fp8 ? static_cast<double>(elements.fp8) : 0};
  found->second = seconds_of(update_work(sizes, setup_.layers), hardware_);
  return found->second;
}

ForwardBackward layer_times(const PaperLayer& layer, const LayerOptions& options, bool is_first, GroupTimes& groups,
                            const HardwareProfile& hardware) {
  // With recomputed experts, rows are sent again in backward and cannot hide behind the shared expert.
  const auto rows = in_language(options.recompute).experts ? RowsTravel::Alone : RowsTravel::BesideSharedExpert;
  return {layer_time(layer.work.forward, layer.collectives.forward, rows, groups, hardware),
          layer_time(in_microbatch(layer.work.backward, is_first), layer.collectives.backward, RowsTravel::Alone,
                     groups, hardware)};
}

StepTimes::StepTimes(const ReducedWorld& world, const StepSetup& setup, const ScheduleOptions& options,
                     const StepSizes& sizes, const HardwareProfile& hardware, OptimizerTimes& optimizers)
    : world_(world),
      setup_(setup),
      options_(options),
      sizes_(sizes),
      hardware_(hardware),
      optimizers_(optimizers),
      sends_(world.topology.world_size()),
      receives_(sends_.size()) {
  for (const Edge& edge : make_edges(world.topology)) {
    if (!edge.crosses_modules()) continue;
    ++sends_[edge.from_rank];
    ++receives_[edge.to_rank];
  }
}

OpTime StepTimes::of_op(int rank, const Op& op) {
  const int m = op.stage.module;
  OpTime time;
  switch (op.kind) {
    case Op::Load:
      return collectives_time(step_of(m, rank).load(op.stage, op.microbatch), groups_of(m, full_rank(m, rank)));
    case Op::Forward:
      return stage_times(op.stage, rank, op.microbatch).forward;
    case Op::Backward:
      return stage_times(op.stage, rank, op.microbatch).backward;
    case Op::EndReduce:
      return optimizers_.of_stage(op.stage).replica_sums;
    case Op::Update:
      for (int own = 0; own < std::ssize(world_.modules); ++own)
        if (world_.topology.module(own).dense.contains(rank)) time += of_update(own, rank);
      return time;
    default:
      return {};
  }
}

double StepTimes::of_collective(int rank, const Op& op) {
  const OptimizerTimes::OfStage& times = optimizers_.of_stage(op.stage);
  if (op.kind == Op::StartGather) {
    const double forward = stage_times(op.stage, rank, 0).forward.seconds();
    return times.gathers + (options_.overlap_gather ? times.last_gathered * forward : 0);
  }
  const double backward =
      options_.overlap_reduce ? stage_times(op.stage, rank, options_.microbatches - 1).backward.seconds() : 0;
  double end = 0;
  for (const auto& [completed, seconds] : times.reductions) end = std::max(end, completed * backward) + seconds;
  return end;
}

double StepTimes::messages_of_collective(const Op& op) {
  const OptimizerTimes::OfStage& times = optimizers_.of_stage(op.stage);
  if (op.kind == Op::StartGather) return times.gathers;
  double sum = 0;
  for (const auto& bucket : times.reductions) sum += bucket.seconds;
  return sum;
}

// All transfers between modules that a rank sends share its link, and so do all that it receives.
double StepTimes::of_transfer(const Edge& edge, int microbatch) const {
  const Edge large = {edge.from, full_rank(edge.from.module, edge.from_rank), edge.to,
                      full_rank(edge.to.module, edge.to_rank)};
  if (world_.topology.colocated() && edge.from_rank == edge.to_rank) return 0;
  const auto bytes = static_cast<double>(step_of(edge.from.module, edge.from_rank).transfer_bytes(large, microbatch));
  const int together = edge.crosses_modules() ? std::max(sends_[edge.from_rank], receives_[edge.to_rank]) : 1;
  return together * seconds_of(CollectiveKind::Exchange, bytes,
                               place_pair(large.from_rank, large.to_rank, hardware_.ranks_per_node), hardware_);
}

const StepTimes::Times& StepTimes::stage_times(const Stage& stage, int rank, int microbatch) {
  const int replica = world_.topology.modules()[stage.module].dense.coord(rank, "dp");
  const Times*& known = by_microbatch_[{stage.module, stage.index, replica, microbatch}];
  if (known) return *known;
  const RankStep step = step_of(stage.module, rank);
  std::vector<std::int64_t> sizes = step.input_sizes(stage, microbatch);
  sizes.insert(sizes.end(), {stage.module, stage.index, microbatch == 0 ? 1 : 0});
  const auto [found, is_new] = by_size_.try_emplace(std::move(sizes));
  if (is_new) found->second = compute_stage_times(step, stage, full_rank(stage.module, rank), microbatch);
  known = &found->second;
  return *known;
}

StepTimes::Times StepTimes::compute_stage_times(const RankStep& step, const Stage& stage, int full_rank,
                                                int microbatch) {
  GroupTimes& groups = groups_of(stage.module, full_rank);
  const StageOnPaper paper = step.walk(stage, microbatch);
  Times times;
  std::vector<std::pair<const PaperLayer*, Times>> distinct;  // equal layers take the same time
  for (const PaperLayer& layer : paper.layers) {
    auto same = std::ranges::find_if(distinct, [&](const auto& known) { return *known.first == layer; });
    if (same == distinct.end())
      same = distinct.insert(same, {&layer, layer_times(layer, setup_.layers, microbatch == 0, groups, hardware_)});
    times.forward += same->second.forward;
    times.backward += same->second.backward;
  }
  times.forward += collectives_time(step.shared_embeddings(stage, microbatch, true), groups);
  times.backward += collectives_time(step.shared_embeddings(stage, microbatch, false), groups);
  return times;
}

// The collectives of all ranks are attributed to the first module.
OpTime StepTimes::of_update(int m, int rank) {
  const RankStep step = step_of(m, rank);
  OpTime time = {.compute = optimizers_.update_of(m, rank)};
  time += collectives_time(step.update(m, sizes_), groups_of(m, full_rank(m, rank)));
  if (m == stages_of(world_.topology, rank).front().module)
    time[CommKind::Other] += seconds_of(CollectiveKind::AllReduce, static_cast<double>(step.agreed_bytes()),
                                        place_world(world_.full_size(), hardware_.ranks_per_node), hardware_);
  return time;
}

// Uses the placement of the replica whose group is on the most nodes, so that times are equal in all replicas.
GroupTimes& StepTimes::groups_of(int m, int full_rank) {
  const Grid& grid = module(m).dense;
  const int replica = grid.size_of("tp") * grid.size_of("cp");
  const int in_first_replica = full_rank - grid.coord(full_rank, "dp") * replica;
  return groups_.try_emplace({m, in_first_replica}, module(m), in_first_replica, hardware_).first->second;
}

RankStep StepTimes::step_of(int module, int rank) const {
  return RankStep(setup_, world_.modules, options_, sizes_, full_rank(module, rank));
}

}  // namespace braid
