#include "mimo/mimo_model.h"

#include "base/error.h"
#include "base/strings.h"
#include "comm/world.h"
#include "models/providers.h"
#include "nn/moe.h"
#include "plan/frozen.h"

namespace braid {

namespace {

const Module& module_of(const Topology& topology, const Stage& stage) { return topology.module(stage.module); }

}  // namespace

MimoModel::LocalStage::LocalStage(const Topology& topology, const Stage& stage, int global_rank, Parallel groups)
    : stage(stage),
      position{stage.index, stage_count(module_of(topology, stage))},
      is_first_of_stage(module_of(topology, stage).dense.coord(global_rank, "tp") == 0 &&
                        module_of(topology, stage).dense.coord(global_rank, "cp") == 0),
      parallel(std::move(groups)) {}

MimoModel::MimoModel(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
                     const MimoOptions& options)
    : provider_(provider), topology_(topology), groups_(groups), world_(world), options_(options) {
  for (const std::string& name : options.frozen)
    BRAID_CHECK(contains(parameter_set_names(topology), name), "there is no parameter set '{}'", name);
  std::vector<LocalStage*> language;
  for (const Stage& stage : stages_of(topology, world.rank())) {
    const Module& module = module_of(topology, stage);
    local_stages_.push_back(std::make_unique<LocalStage>(
        topology, stage, world.rank(),
        make_parallel(groups, module.name, options.sequence_parallel && !module.is_encoder, options.overlap)));
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
  std::vector<int> stages;
  for (const LocalStage* local : locals) stages.push_back(local->stage.index);
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

const EncoderConfig& MimoModel::encoder_config(int module) const {
  return encoder_named(provider_, topology_.module(module).name);
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
  for (const auto& local : local_stages_) {
    if (!local->language) continue;
    const std::vector<Moe*> own = local->language->moe_layers();
    layers.insert(layers.end(), own.begin(), own.end());
  }
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

}  // namespace braid
