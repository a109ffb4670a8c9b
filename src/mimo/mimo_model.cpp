#include "mimo/mimo_model.h"
#include <ATen/ATen.h>
#include "base/strings.h"
#include "comm/world.h"
#include "nn/moe.h"

namespace braid {

MimoModel::MimoModel(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
                     const MimoOptions& options)
    : provider_(provider), topology_(topology), groups_(groups), world_(world), options_(options) {
  for (const std::string& name : options.frozen)
    BRAID_CHECK(contains(parameter_set_names(topology), name), "there is no parameter set '{}'", name);
  std::vector<LocalStage*> language;
  for (const Stage& stage : stages_of(topology, world.rank())) {
    const Module& module = topology.module(stage.module);
    const Grid& grid = module.dense;
    local_stages_.push_back(std::make_unique<LocalStage>(LocalStage{
        .stage = stage,
        .position = {stage.index, stage_count(module)},
        .is_first_of_stage = grid.coord(world.rank(), "tp") == 0 && grid.coord(world.rank(), "cp") == 0,
        .parallel =
            make_parallel(groups, module.name, options.sequence_parallel && !module.is_encoder, options.overlap)}));
    if (module.is_encoder)
      add_encoder(*local_stages_.back());
    else
      language.push_back(local_stages_.back().get());
  }
  if (!language.empty()) add_language(language);
}

const MimoModel::LocalStage& MimoModel::local_stage(const Stage& stage) const {
  for (const auto& local : local_stages_)
    if (local->stage == stage) return *local;
  throw_check_failed(__FILE__, __LINE__,
                     fmt::format("rank {} has no stage {} of module {}", world_.rank(), stage.index, stage.module));
}

void MimoModel::add_language(const std::vector<LocalStage*>& locals) {
  const auto stages = vector_of<int>(locals, [](const LocalStage* local) { return local->stage.index; });
  const LocalStage& first = *locals.front();
  const Parameters& parameters = add_set(topology_.language().name, first.stage.module,
                                         declare_parameters(provider_.language, first.position.stages), stages);
  for (LocalStage* local : locals)
    local->language = std::make_unique<Decoder>(provider_.language, parameters, local->parallel, local->position.stage,
                                                local->position.stages, options_.recompute);
}

void MimoModel::add_encoder(LocalStage& local) {
  const int module = local.stage.module;
  const EncoderConfig& config = encoder_config(module);
  const Parameters& encoder = add_set(config.name + ".encoder", module,
                                      declare_parameters(config.model, local.position.stages), {local.stage.index});
  const Parameters* projector = nullptr;
  if (local.position.is_last())
    projector = &add_set(config.name + ".projector", module,
                         declare_parameters(config.projector, local.position.stages), {local.stage.index});
  local.config = &config;
  local.encoder =
      std::make_unique<EncoderStage>(config, encoder, projector, local.parallel, local.position, options_.recompute);
}

at::TensorOptions MimoModel::tensor_options() const {
  return at::TensorOptions(options_.dtype).device(world_.device());
}

const Parameters& MimoModel::add_set(const std::string& name, int module, const std::vector<ParamSpec>& specs,
                                     const std::vector<int>& stages) {
  const ShardCoordinates coordinates = shard_coordinates(topology_.module(module), world_.rank());
  sets_.push_back(std::make_unique<ParameterSet>(
      ParameterSet{name, module, specs, Parameters(specs, stages, coordinates, options_.dtype, world_.device())}));
  Parameters& parameters = sets_.back()->parameters;
  if (options_.initialize_weights) parameters.initialize(options_.seed);
  if (contains(options_.frozen, name))
    for (const Parameters::Entry& entry : parameters.entries()) at::Tensor(entry.value).requires_grad_(false);
  return parameters;
}

std::vector<Moe*> MimoModel::moe_layers() const {
  std::vector<Moe*> layers;
  for (const auto& local : local_stages_)
    if (local->language) std::ranges::copy(local->language->moe_layers(), std::back_inserter(layers));
  return layers;
}

void MimoModel::update_expert_bias() {
  const std::string& language = topology_.language().name;
  if (contains(options_.frozen, language)) return forget_expert_tokens();
  const std::vector<Moe*> layers = moe_layers();
  if (!layers.empty()) Moe::update_expert_biases(layers, groups_.get(language, "dp-cp-tp"));
}

void MimoModel::forget_expert_tokens() {
  for (Moe* moe : moe_layers()) moe->forget_tokens();
}

// --- merging

RowPlaces find_media(const at::Tensor& is_media, const Parallel& parallel, const at::Device& device) {
  const std::int64_t tokens = is_media.size(0), own = own_rows_of(tokens, parallel);
  const std::int64_t first =
      parallel.cp.rank() * (tokens / parallel.cp.size()) + (parallel.sequence_parallel ? parallel.tp.rank() * own : 0);
  const at::Tensor row_of = (is_media.cumsum(0) - 1).masked_fill_(is_media.logical_not(), -1).narrow(0, first, own);
  at::Tensor place_of = is_media.nonzero().squeeze(1) - first;
  place_of.masked_fill_(place_of >= own, -1);
  return {upload(row_of, device), upload(place_of, device)};
}

at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& embeddings, const RowPlaces& media) {
  if (embeddings.size(0) == 0 && !embeddings.requires_grad()) return merged;
  return put_rows(merged, embeddings, media);
}

}  // namespace braid
