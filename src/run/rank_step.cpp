#include "run/rank_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/strings.h"
#include "train/stop_request.h"

namespace braid {
namespace {

constexpr std::int64_t kNumberBytes = 8;  // of a double, and of an int64

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
// sizes of the next step (mimo/size_table.h).
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

}  // namespace braid
