#include "run/rank_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "base/strings.h"
#include "plan/channels.h"
#include "train/stop_request.h"

namespace braid {
namespace {

constexpr std::int64_t kNumberBytes = 8;  // of a double, and of an int64

// Sums up the communication of a step.
class RankTraffic {
 public:
  RankTraffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan, const StepSizes& sizes,
              const StepSizes& next, int global_rank)
      : topology_(topology),
        plan_(plan),
        next_(next),
        rank_(global_rank),
        step_(setup, topology.modules(), plan.options, sizes, global_rank),
        optimizers_(setup, topology.modules(), global_rank) {}

  TrafficTable count() {
    for (const Op& op : plan_.schedule.ranks[static_cast<std::size_t>(rank_)]) add(op);
    return std::move(table_);
  }

 private:
  void add(const Op& op) {
    const int m = op.stage.module;
    switch (op.kind) {
      case Op::Begin:
      case Op::EndGather:
        return;
      case Op::Load:
        return add(m, step_.load(op.stage, op.microbatch));
      case Op::Forward:
      case Op::Backward:
        return compute(op);
      case Op::Exchange:
        return exchange(op.transfers);
      case Op::StartGather:
        return add(m, optimizers_.gathers(op.stage));
      case Op::StartReduce:
        return add(m, optimizers_.reductions(op.stage));
      case Op::EndReduce:
        return add(m, optimizers_.replica_sums(op.stage));
      case Op::Update:
        return update();
    }
  }

  void add(const std::string& meeting, const std::string& operation, std::int64_t bytes, std::int64_t operations = 1) {
    Traffic& traffic = table_[{meeting, operation}];
    traffic.operations += operations;
    traffic.bytes += bytes;
  }
  // Groups of one rank do not communicate, and empty tensors are not sent.
  void add(int m, const Collectives& collectives) {
    const Module& module = topology_.module(m);
    for (const Collective& collective : collectives)
      if (collective.bytes > 0 && group_size(module, collective.group) > 1)
        add(module.name + "." + collective.group, collective.operation, collective.bytes, collective.operations);
  }

  void compute(const Op& op) {
    const bool is_forward = op.kind == Op::Forward;
    std::vector<std::int64_t> sizes = step_.input_sizes(op.stage, op.microbatch);
    sizes.insert(sizes.end(), {op.stage.module, op.stage.index});
    const auto [found, is_new] = stages_.try_emplace(std::move(sizes));
    if (is_new) found->second = step_.walk(op.stage, op.microbatch).layers;
    for (const PaperLayer& layer : found->second)
      add(op.stage.module, is_forward ? layer.collectives.forward : layer.collectives.backward);
    add(op.stage.module, step_.shared_embeddings(op.stage, op.microbatch, is_forward));
  }

  // Transfers are counted at both ends.
  void exchange(const std::vector<Transfer>& transfers) {
    for (const Transfer& t : transfers) {
      const Edge& edge = plan_.edges[static_cast<std::size_t>(t.edge)];
      const bool forward = t.kind == Transfer::Activation;
      const std::int64_t bytes = step_.transfer_bytes(edge, t.microbatch);
      if (bytes == 0) continue;
      add(fmt::format("{}.{} {}>{}", topology_.module(edge.from.module).name,
                      key_of(channel_of(topology_, edge, t.kind)), forward ? edge.from_rank : edge.to_rank,
                      forward ? edge.to_rank : edge.from_rank),
          "exchange", bytes);
    }
  }

  void update() {
    if (topology_.world_size() > 1) add("world", "all_reduce", step_.agreed_bytes());
    for (int m = 0; m < static_cast<int>(topology_.modules().size()); ++m)
      if (topology_.module(m).dense.contains(rank_)) add(m, step_.update(m, next_));
  }

  const Topology& topology_;
  const StepPlan& plan_;
  const StepSizes& next_;
  const int rank_;
  const RankStep step_;
  const RankOptimizers optimizers_;
  std::map<std::vector<std::int64_t>, std::vector<PaperLayer>> stages_;  // by the sizes of their input
  TrafficTable table_;
};

}  // namespace

RankStep::RankStep(const StepSetup& setup, const std::vector<Module>& modules, const ScheduleOptions& options,
                   const StepSizes& sizes, int global_rank)
    : setup_(setup), options_(options), sizes_(setup, modules, sizes, global_rank), rank_(global_rank) {}

// --- ops of stages

Collectives RankStep::load(const Stage& stage, int microbatch) const {
  const int m = stage.module;
  if (!module(m).is_encoder) return {};
  return {{"cp-tp", "broadcast", sizes_.media_bytes(m, microbatch)}};
}

std::vector<std::int64_t> RankStep::input_sizes(const Stage& stage, int microbatch) const {
  std::vector<std::int64_t> sizes;
  if (!module(stage.module).is_encoder) {
    const TextSizes text = sizes_.text(microbatch);
    sizes = {text.tokens, text.labels, std::llround(text.squares)};
    for (const Collective& shared : shared_embeddings(stage, microbatch, true)) sizes.push_back(shared.bytes);
    return sizes;
  }
  for (const auto& extent : sizes_.extents(stage.module, microbatch))
    sizes.insert(sizes.end(), extent.begin(), extent.end());
  return sizes;
}

Collectives RankStep::shared_embeddings(const Stage& stage, int microbatch, bool is_forward) const {
  if (module(stage.module).is_encoder || stage.index != 0) return {};
  Collectives all;
  for (int m = 0; m < sizes_.modules(); ++m) {
    if (!module(m).is_encoder) continue;
    if (!is_forward && contains(options_.frozen, module(m).name)) continue;
    const std::int64_t rows = sizes_.embeddings(m, microbatch, sizes_.samples_of(stage.module, rank_));
    all.push_back({"cp-tp", is_forward ? "broadcast" : "reduce", rows * sizes_.embedding_bytes()});
  }
  return all;
}

std::int64_t RankStep::transfer_bytes(const Edge& edge, int microbatch) const {
  const int m = edge.from.module;
  if (edge.crosses_modules()) {
    const SampleRange from = sizes_.samples_of(m, edge.from_rank), to = sizes_.samples_of(edge.to.module, edge.to_rank);
    return sizes_.embeddings(m, microbatch, {std::max(from.begin, to.begin), std::min(from.end, to.end)}) *
           sizes_.embedding_bytes();
  }
  if (module(m).is_encoder) {
    std::int64_t rows = 0;
    for (const auto& extent : sizes_.extents(m, microbatch)) rows += hidden_rows_of(sizes_.encoder(m).model, extent);
    return rows * hidden_of(sizes_.encoder(m).model) * setup_.layers.element_bytes;
  }
  const int split = setup_.layers.sequence_parallel ? group_size(module(m), "cp-tp") : group_size(module(m), "cp");
  return sizes_.replica_text(microbatch).tokens / split * sizes_.embedding_bytes();
}

// --- the update

// One all-reduce (train/training.cpp) carries the result of Step::finish(), gradient_terms(), reasons to stop, and the
// sizes of the next step (mimo/batch_feed.cpp).
std::int64_t RankStep::agreed_bytes() const {
  const std::int64_t totals = 7 + sizes_.modules(), gradients = sizes_.modules() + 2,
                     stops = static_cast<std::int64_t>(StopReason::SigInt) + 1;
  std::int64_t table = 1;
  for (int m = 0; m < sizes_.modules(); ++m) {
    table += 2 * std::int64_t{module(m).dense.size_of("dp")} * options_.microbatches;
    table += (module(m).is_encoder ? 4 : 1) * sizes_.samples() * options_.microbatches;
  }
  return (totals + gradients + stops + table) * kNumberBytes;
}

Collectives RankStep::update(int m, const StepSizes& next) const {
  Collectives all = {{"pp-cp-tp", "broadcast", shared_numbers(m, next) * kNumberBytes}};
  if (!module(m).is_encoder && sizes_.trains(module(m).name))
    std::ranges::copy(update_collectives(setup_.model.language, module(m), own_stages(m), setup_.layers),
                      std::back_inserter(all));
  return all;
}

// The numbers of the next step that a leader broadcasts (mimo/batch_feed.cpp): ids, labels and sequence boundaries, or
// extents.
std::int64_t RankStep::shared_numbers(int m, const StepSizes& next) const {
  const RankSizes sizes = sizes_.of_step(next);
  std::int64_t numbers = 0;
  for (int microbatch = 0; microbatch < options_.microbatches; ++microbatch) {
    if (module(m).is_encoder) {
      numbers += std::ssize(sizes.extents(m, microbatch)) * extent_dims(sizes_.encoder(m).model);
    } else {
      const StepSizes::Text& text = sizes.replica_text(microbatch);
      numbers += 2 * text.tokens + text.sequences + 1;
    }
  }
  return numbers;
}

std::vector<int> RankStep::own_stages(int m) const {
  const int pp = module(m).dense.size_of("pp");
  std::vector<int> stages;
  for (int stage = module(m).dense.coord(rank_, "pp"); stage < stage_count(module(m)); stage += pp)
    stages.push_back(stage);
  return stages;
}

// --- optimizers

RankOptimizers::RankOptimizers(const StepSetup& setup, const std::vector<Module>& modules, int global_rank) {
  for (int m = 0; m < static_cast<int>(modules.size()); ++m) {
    const Module& own = modules[static_cast<std::size_t>(m)];
    if (!own.dense.contains(global_rank)) continue;
    for (const DeclaredSet& set : declared_sets(setup, own))
      if (set.trains)
        optimizers_.push_back({m, {set.specs, own, global_rank, setup.optimizer, setup.layers.element_bytes}});
  }
}

Collectives RankOptimizers::all_of(const Stage& stage, Collectives (OptimizerCollectives::*list)(int) const) const {
  Collectives all;
  for (const Optimizer& optimizer : optimizers_)
    if (optimizer.module == stage.module)
      std::ranges::copy((optimizer.collectives.*list)(stage.index), std::back_inserter(all));
  return all;
}

OptimizerElements RankOptimizers::elements() const {
  OptimizerElements sum;
  for (const Optimizer& optimizer : optimizers_) {
    const OptimizerElements own = optimizer.collectives.elements();
    sum.gradients += own.gradients;
    sum.updated += own.updated;
    sum.fp8 += own.fp8;
  }
  return sum;
}

TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank) {
  return RankTraffic(setup, topology, plan, sizes, next, global_rank).count();
}

}  // namespace braid
