#include "run/rank_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/strings.h"
#include "train/stop_request.h"

namespace braid {
namespace {

constexpr std::int64_t kNumberBytes = 8;  // of a double, and of an int64

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t samples_of_microbatch(const StepSetup& setup, const std::vector<Module>& modules) {
  const auto language = std::ranges::find_if(modules, [](const Module& m) { return !m.is_encoder; });
  return std::int64_t{setup.micro_batch} * language->dense.size_of("dp");
}

}  // namespace

RankStep::RankStep(const StepSetup& setup, const std::vector<Module>& modules, const ScheduleOptions& options,
                   const StepSizes& sizes, int global_rank)
    : setup_(setup),
      modules_(modules),
      options_(options),
      sizes_(sizes),
      rank_(global_rank),
      samples_(samples_of_microbatch(setup, modules)) {}

// --- ops of stages

Collectives RankStep::load(const Stage& stage, int microbatch) const {
  const int m = stage.module;
  if (!module(m).is_encoder) return {};
  std::int64_t numbers = 0;
  for (const auto& extent : own_extents(sizes_, m, microbatch)) {
    std::int64_t rows = 1;
    for (const std::int64_t side : extent) rows *= side;
    numbers += rows * features_of(encoder(m).model);
  }
  return {{"cp-tp", "broadcast", numbers * sizes_.value_bytes[index(m)]}};
}

std::vector<std::int64_t> RankStep::input_sizes(const Stage& stage, int microbatch) const {
  if (!module(stage.module).is_encoder) {
    const TextSizes text = text_sizes(stage.module, microbatch);
    std::vector<std::int64_t> sizes = {text.tokens, text.labels, std::llround(text.squares)};
    for (const Collective& shared : shared_embeddings(stage, microbatch, true)) sizes.push_back(shared.bytes);
    return sizes;
  }
  std::vector<std::int64_t> sizes;
  for (const auto& extent : own_extents(sizes_, stage.module, microbatch))
    sizes.insert(sizes.end(), extent.begin(), extent.end());
  return sizes;
}

std::vector<LayerCollectives> RankStep::collectives(const Stage& stage, int microbatch) const {
  const Module& own = module(stage.module);
  if (own.is_encoder)
    return collectives_of(encoder(stage.module), own, stage.index, setup_.layers,
                          own_extents(sizes_, stage.module, microbatch), encoder_training(stage.module));
  return collectives_of(setup_.model.language, own, stage.index, setup_.layers, text_sizes(stage.module, microbatch),
                        trains(own.name));
}

std::vector<LayerWork> RankStep::work(const Stage& stage, int microbatch) const {
  const Module& own = module(stage.module);
  if (own.is_encoder)
    return work_of(encoder(stage.module), own, stage.index, setup_.layers,
                   own_extents(sizes_, stage.module, microbatch), encoder_training(stage.module));
  return work_of(setup_.model.language, own, stage.index, setup_.layers, text_sizes(stage.module, microbatch),
                 trains(own.name));
}

Collectives RankStep::shared_embeddings(const Stage& stage, int microbatch, bool is_forward) const {
  if (module(stage.module).is_encoder || stage.index != 0) return {};
  Collectives all;
  for (int m = 0; m < modules(); ++m) {
    if (!module(m).is_encoder) continue;
    if (!is_forward && contains(options_.frozen, module(m).name)) continue;
    const std::int64_t rows = embeddings(m, microbatch, samples_of(stage.module, rank_));
    all.push_back({"cp-tp", is_forward ? "broadcast" : "reduce", rows * embedding_bytes()});
  }
  return all;
}

std::int64_t RankStep::transfer_bytes(const Edge& edge, int microbatch) const {
  const int m = edge.from.module;
  if (edge.crosses_modules()) {
    const SampleRange from = samples_of(m, edge.from_rank), to = samples_of(edge.to.module, edge.to_rank);
    return embeddings(m, microbatch, {std::max(from.begin, to.begin), std::min(from.end, to.end)}) * embedding_bytes();
  }
  if (module(m).is_encoder) {
    std::int64_t rows = 0;
    for (const auto& extent : own_extents(sizes_, m, microbatch)) rows += hidden_rows_of(encoder(m).model, extent);
    return rows * hidden_of(encoder(m).model) * setup_.layers.element_bytes;
  }
  const int split = setup_.layers.sequence_parallel ? group_size(module(m), "cp-tp") : group_size(module(m), "cp");
  return own_text(sizes_, m, microbatch).tokens / split * embedding_bytes();
}

// --- the update

// One all-reduce (train/training.cpp): what Step::finish() returns, gradient_terms(), reasons to stop, and the sizes
// of the next step (mimo/size_table.h).
std::int64_t RankStep::agreed_bytes() const {
  const std::int64_t totals = 7 + modules(), gradients = modules() + 2,
                     stops = static_cast<std::int64_t>(StopReason::SigInt) + 1;
  std::int64_t table = 1;
  for (int m = 0; m < modules(); ++m) {
    table += 2 * std::int64_t{module(m).dense.size_of("dp")} * options_.microbatches;
    if (module(m).is_encoder) table += 3 * samples_ * options_.microbatches;
  }
  return (totals + gradients + stops + table) * kNumberBytes;
}

Collectives RankStep::update(int m, const StepSizes& next) const {
  Collectives all = {{"pp-cp-tp", "broadcast", shared_numbers(m, next) * kNumberBytes}};
  if (!module(m).is_encoder && trains(module(m).name))
    std::ranges::copy(update_collectives(setup_.model.language, module(m), own_stages(m), setup_.layers),
                      std::back_inserter(all));
  return all;
}

// Ids, labels and boundaries of sequences, or extents: what a leader shares of the next step (mimo/batch_feed.cpp).
std::int64_t RankStep::shared_numbers(int m, const StepSizes& next) const {
  std::int64_t numbers = 0;
  for (int microbatch = 0; microbatch < options_.microbatches; ++microbatch) {
    if (module(m).is_encoder) {
      numbers += std::ssize(own_extents(next, m, microbatch)) * extent_dims(encoder(m).model);
    } else {
      const StepSizes::Text& text = own_text(next, m, microbatch);
      numbers += 2 * text.tokens + text.sequences + 1;
    }
  }
  return numbers;
}

// --- sizes of this rank

const EncoderConfig& RankStep::encoder(int m) const { return encoder_of(setup_.model, module(m)); }
bool RankStep::trains(const std::string& set) const { return !contains(setup_.frozen, set); }
EncoderTraining RankStep::encoder_training(int m) const {
  return {.encoder = trains(module(m).name + ".encoder"), .projector = trains(module(m).name + ".projector")};
}
std::int64_t RankStep::embedding_bytes() const {
  return hidden_of(setup_.model.language) * setup_.layers.element_bytes;
}

std::vector<int> RankStep::own_stages(int m) const {
  const int pp = module(m).dense.size_of("pp");
  std::vector<int> stages;
  for (int stage = module(m).dense.coord(rank_, "pp"); stage < stage_count(module(m)); stage += pp)
    stages.push_back(stage);
  return stages;
}

TextSizes RankStep::text_sizes(int m, int microbatch) const {
  const StepSizes::Text& text = own_text(sizes_, m, microbatch);
  return {.tokens = text.tokens,
          .samples = setup_.micro_batch,
          .labels = text.labels[index(module(m).dense.coord(rank_, "cp"))],
          .squares = text.squares};
}

const StepSizes::Text& RankStep::own_text(const StepSizes& sizes, int m, int microbatch) const {
  return sizes.text[index(microbatch)][index(module(m).dense.coord(rank_, "dp"))];
}

StepSizes::Extents RankStep::own_extents(const StepSizes& sizes, int m, int microbatch) const {
  const SampleRange own = samples_of(m, rank_);
  StepSizes::Extents all;
  for (std::int64_t s = own.begin; s < own.end; ++s)
    std::ranges::copy(sizes.media[index(m)][index(microbatch)][index(s)], std::back_inserter(all));
  return all;
}

std::int64_t RankStep::embeddings(int m, int microbatch, const SampleRange& samples) const {
  std::int64_t rows = 0;
  for (std::int64_t s = samples.begin; s < samples.end; ++s)
    for (const auto& extent : sizes_.media[index(m)][index(microbatch)][index(s)]) rows += rows_of(encoder(m), extent);
  return rows;
}

// --- optimizers

RankOptimizers::RankOptimizers(const StepSetup& setup, const std::vector<Module>& modules, int global_rank) {
  for (int m = 0; m < static_cast<int>(modules.size()); ++m) {
    const Module& own = modules[index(m)];
    if (!own.dense.contains(global_rank)) continue;
    const int stages = stage_count(own);
    const auto add_set = [&](const std::string& set, const std::vector<ParamSpec>& specs) {
      if (!contains(setup.frozen, set))
        optimizers_.push_back({m, {specs, own, global_rank, setup.optimizer, setup.layers.element_bytes}});
    };
    if (own.is_encoder) {
      const EncoderConfig& encoder = encoder_of(setup.model, own);
      add_set(own.name + ".encoder", declare_parameters(encoder.model, stages));
      add_set(own.name + ".projector", declare_parameters(encoder.projector, stages));
    } else {
      add_set(own.name, declare_parameters(setup.model.language, stages));
    }
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
  }
  return sum;
}

}  // namespace braid
