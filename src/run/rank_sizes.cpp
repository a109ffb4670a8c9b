#include "run/rank_sizes.h"

#include <algorithm>
#include <iterator>

#include "base/strings.h"

namespace braid {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

int index_of_language(const std::vector<Module>& modules) {
  const auto is_language = [](const Module& module) { return !module.is_encoder; };
  return static_cast<int>(std::ranges::find_if(modules, is_language) - modules.begin());
}

}  // namespace

RankSizes::RankSizes(const StepSetup& setup, const std::vector<Module>& modules, const StepSizes& sizes,
                     int global_rank)
    : setup_(setup),
      modules_(modules),
      sizes_(sizes),
      rank_(global_rank),
      language_(index_of_language(modules)),
      samples_(std::int64_t{setup.micro_batch} * module(language_).dense.size_of("dp")) {}

bool RankSizes::trains(const std::string& set) const { return !contains(setup_.frozen, set); }

const StepSizes::Text& RankSizes::replica_text(int microbatch) const {
  return sizes_.text[index(microbatch)][index(module(language_).dense.coord(rank_, "dp"))];
}

TextSizes RankSizes::text(int microbatch) const {
  const StepSizes::Text& text = replica_text(microbatch);
  std::int64_t rows = 0;
  for (int m = 0; m < modules(); ++m)
    if (module(m).is_encoder) rows += embeddings(m, microbatch, samples_of(language_, rank_));
  return {.tokens = text.tokens,
          .samples = setup_.micro_batch,
          .labels = text.labels[index(module(language_).dense.coord(rank_, "cp"))],
          .squares = text.squares,
          .embeddings = rows};
}

StepSizes::Extents RankSizes::extents(int m, int microbatch) const {
  const SampleRange own = samples_of(m, rank_);
  StepSizes::Extents all;
  for (std::int64_t s = own.begin; s < own.end; ++s)
    std::ranges::copy(sizes_.media[index(m)][index(microbatch)][index(s)], std::back_inserter(all));
  return all;
}

std::int64_t RankSizes::media_bytes(int m, int microbatch) const {
  std::int64_t numbers = 0;
  for (const auto& extent : extents(m, microbatch)) numbers += num_elements(extent) * features_of(encoder(m).model);
  return numbers * sizes_.value_bytes[index(m)];
}

StageOnPaper RankSizes::walk(const Stage& stage, int microbatch) const {
  const int m = stage.module;
  const Module& own = module(m);
  if (!own.is_encoder)
    return walk_stage(setup_.model.language, own, stage.index, setup_.layers, text(microbatch), trains(own.name));
  return walk_stage(encoder(m), own, stage.index, setup_.layers, extents(m, microbatch),
                    {.encoder = trains(own.name + ".encoder"), .projector = trains(own.name + ".projector")});
}

std::int64_t RankSizes::embeddings(int m, int microbatch, const SampleRange& samples) const {
  std::int64_t rows = 0;
  for (std::int64_t s = samples.begin; s < samples.end; ++s)
    for (const auto& extent : sizes_.media[index(m)][index(microbatch)][index(s)]) rows += rows_of(encoder(m), extent);
  return rows;
}

std::int64_t RankSizes::embedding_bytes() const {
  return hidden_of(setup_.model.language) * setup_.layers.element_bytes;
}

std::vector<DeclaredSet> declared_sets(const StepSetup& setup, const Module& module) {
  const auto trains = [&](const char* part) { return !contains(setup.frozen, module.name + part); };
  const int stages = stage_count(module);
  if (!module.is_encoder) return {{declare_parameters(setup.model.language, stages), trains("")}};
  const EncoderConfig& encoder = encoder_of(setup.model, module);
  return {{declare_parameters(encoder.model, stages), trains(".encoder")},
          {declare_parameters(encoder.projector, stages), trains(".projector")}};
}

}  // namespace braid
