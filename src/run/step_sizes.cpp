#include "run/step_sizes.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/strings.h"
#include "models/providers.h"
#include "plan/frozen.h"

namespace braid {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Patches (or frames) along the longest side of an item. A data set may also limit the size of its pictures.
std::int64_t longest_side(const RecipeData& data, const MockMediaConfig& mock) {
  const PictureConfig& pictures = data.set.pictures;
  if (is_mock(data) || pictures.fit != "dynamic" || pictures.max_patches == 0) return mock.max_size;
  return std::min<std::int64_t>(mock.max_size, std::lround(std::floor(std::sqrt(pictures.max_patches))));
}

// The largest media that fit into the tokens of one sub-sequence, by encoder.
std::vector<StepSizes::Extents> largest_media(const Recipe& recipe, const Topology& topology) {
  std::vector<StepSizes::Extents> all;
  std::int64_t room = piece_length(recipe.data, recipe.model.model) - kRoomForText;
  for (const Module& module : topology.modules()) {
    StepSizes::Extents& items = all.emplace_back();
    if (!module.is_encoder) continue;
    const EncoderConfig& encoder = encoder_of(recipe.model.model, module);
    const MockMediaConfig& mock = mock_of(recipe.data, module.name);
    const std::int64_t side = longest_side(recipe.data, mock);
    const std::vector<std::int64_t> extent = fitting_extent(encoder, side, side);
    const std::int64_t rows = rows_of(encoder, extent), wanted = mock.share > 0 ? mock.max_items : 0;
    const std::int64_t count = std::min(wanted, room / rows);
    items.assign(index(count), extent);
    room -= count * rows;
  }
  return all;
}

int index_of_language(const std::vector<Module>& modules) {
  const auto is_language = [](const Module& module) { return !module.is_encoder; };
  return static_cast<int>(std::ranges::find_if(modules, is_language) - modules.begin());
}

}  // namespace

const EncoderConfig& encoder_of(const Provider& provider, const Module& module) {
  return encoder_named(provider, module.name);
}

StepSetup step_setup(const Recipe& recipe) {
  const std::int64_t element_bytes = recipe.model.dtype == "bfloat16" ? 2 : recipe.model.dtype == "float32" ? 4 : 8;
  return {.model = recipe.model.model,
          .optimizer = recipe.optimizer,
          .frozen = frozen_sets(recipe),
          .layers = {.element_bytes = element_bytes,
                     .sequence_parallel = recipe.model.sequence_parallel,
                     .recompute = recompute_config(recipe.model.recompute),
                     .overlap = recipe.model.overlap,
                     .deterministic = recipe.train.deterministic},
          .micro_batch = recipe.train.micro_batch};
}

ScheduleOptions schedule_options_of(const Recipe& recipe, const Topology& topology) {
  ScheduleOptions options = schedule_options(topology, frozen_sets(recipe),
                                             microbatches_of(workload_of(recipe), topology), recipe.train.prefetch);
  options.overlap_reduce = recipe.optimizer.overlap_grad_reduce;
  options.overlap_gather = recipe.optimizer.overlap_param_gather;
  return options;
}

StepSizes full_step(const Recipe& recipe, const Topology& topology) {
  const std::int64_t pieces = recipe.data.packed, micro_batch = recipe.train.micro_batch;
  const std::int64_t tokens = micro_batch * pieces * piece_length(recipe.data, recipe.model.model);
  const Grid& language = topology.language().dense;
  const std::int64_t cp = language.size_of("cp"), replicas = language.size_of("dp");
  const auto microbatches = index(microbatches_of(workload_of(recipe), topology));
  const double length = piece_length(recipe.data, recipe.model.model);
  const StepSizes::Text text = {.tokens = tokens,
                                .sequences = micro_batch * pieces,
                                .labels = std::vector<std::int64_t>(index(cp), tokens / cp),
                                .squares = static_cast<double>(micro_batch * pieces) * length * length};
  StepSizes sizes = {.text{microbatches, std::vector<StepSizes::Text>(index(replicas), text)}};
  for (const StepSizes::Extents& of_piece : largest_media(recipe, topology)) {
    StepSizes::Extents of_sample;
    for (std::int64_t piece = 0; piece < pieces; ++piece) std::ranges::copy(of_piece, std::back_inserter(of_sample));
    sizes.media.emplace_back(microbatches, std::vector<StepSizes::Extents>(index(micro_batch * replicas), of_sample));
    sizes.value_bytes.push_back(is_mock(recipe.data) ? 8 : 1);  // pixels are bytes
  }
  return sizes;
}

// --- on one rank

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
