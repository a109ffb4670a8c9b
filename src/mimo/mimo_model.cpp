#include "mimo/mimo_model.h"

#include "base/error.h"
#include "base/strings.h"
#include "dist/world.h"
#include "mimo/frozen.h"
#include "models/assemble.h"
#include "nn/moe.h"

namespace braid {

MimoModel::Part::Part(const Module& module, int global_rank, Parallel groups)
    : place{module.dense.coord(global_rank, "pp"), module.dense.size_of("pp")},
      leads(module.dense.coord(global_rank, "tp") == 0 && module.dense.coord(global_rank, "cp") == 0),
      parallel(std::move(groups)) {}

MimoModel::MimoModel(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
                     const MimoOptions& options)
    : provider_(provider), topology_(topology), groups_(groups), world_(world), options_(options) {
  for (const std::string& name : options.frozen)
    BRAID_CHECK(contains(parameter_set_names(topology), name), "there is no parameter set '{}'", name);
  parts_.resize(topology.modules().size());
  for (int m = 0; m < static_cast<int>(parts_.size()); ++m) {
    const Module& module = topology.modules()[static_cast<std::size_t>(m)];
    if (!module.dense.contains(world.rank())) continue;
    auto& part = parts_[static_cast<std::size_t>(m)];
    part = std::make_unique<Part>(module, world.rank(),
                                  make_parallel(groups, module.name, options.sequence_parallel && !module.is_encoder));
    module.is_encoder ? add_encoder(m, *part) : add_language(m, *part);
  }
}

void MimoModel::add_language(int module, Part& part) {
  const std::string& name = topology_.modules()[static_cast<std::size_t>(module)].name;
  const Parameters& parameters =
      add_set(name, module, declare_parameters(provider_.language, part.place.pp), part.place.stage);
  part.language = make_language_stage(provider_.language, parameters, part.parallel, part.place, options_.recompute);
}

void MimoModel::add_encoder(int module, Part& part) {
  const EncoderConfig& config = encoder_config(module);
  const Parameters& encoder =
      add_set(config.name + ".encoder", module, declare_parameters(config.model, part.place.pp), part.place.stage);
  const Parameters* projector =
      part.place.is_last() ? &add_set(config.name + ".projector", module, declare_parameters(config.projector), 0)
                           : nullptr;
  part.config = &config;
  part.encoder = make_encoder_stage(config, encoder, projector, part.parallel, part.place, options_.recompute);
}

const EncoderConfig& MimoModel::encoder_config(int module) const {
  const std::string& name = topology_.modules()[static_cast<std::size_t>(module)].name;
  for (const EncoderConfig& encoder : provider_.encoders)
    if (encoder.name == name) return encoder;
  throw_check_failed(__FILE__, __LINE__, fmt::format("{} has no encoder '{}'", provider_.name, name));
}

at::TensorOptions MimoModel::tensor_options() const {
  return at::TensorOptions(options_.dtype).device(world_.device());
}

const Parameters& MimoModel::add_set(const std::string& name, int module, const std::vector<ParamSpec>& specs,
                                     int stage) {
  const ShardPlace place = shard_place(topology_.modules()[static_cast<std::size_t>(module)], world_.rank());
  sets_.push_back(std::make_unique<ParameterSet>(
      ParameterSet{name, module, specs, Parameters(specs, stage, place, options_.dtype, world_.device())}));
  Parameters& parameters = sets_.back()->parameters;
  if (options_.draw_weights) parameters.initialize(options_.seed);
  if (contains(options_.frozen, name))
    for (const Parameters::Entry& entry : parameters.entries()) at::Tensor(entry.value).requires_grad_(false);
  return parameters;
}

void MimoModel::update_expert_bias() {
  const std::string& language = topology_.language().name;
  if (contains(options_.frozen, language)) return forget_expert_tokens();
  for (const auto& part : parts_)
    if (part && part->language)
      for (Moe* moe : part->language->moe_layers()) moe->update_expert_bias(groups_.get(language, "dp-cp-tp"));
}

void MimoModel::forget_expert_tokens() {
  for (const auto& part : parts_)
    if (part && part->language)
      for (Moe* moe : part->language->moe_layers()) moe->forget_tokens();
}

}  // namespace braid
