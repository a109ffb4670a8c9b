// A model's parameters, how a layout splits them and what each rank must hold; as numbers, as text and as JSON. No
// libtorch here.
#pragma once

#include "base/strings.h"
#include "models/providers.h"

namespace braid {

// The layouts of a provider's modules; encoders by name, not split if missing here.
struct ProviderLayout {
  LayoutSizes language{};
  std::map<std::string, LayoutSizes> encoders{};

  LayoutSizes of(const EncoderConfig& encoder) const {
    return value_in(encoders, encoder.name).value_or(LayoutSizes());
  }
};

// One parameter, or the same parameter of several layers.
struct ParamRow {
  std::string name;                 // inside its layer
  std::vector<std::int64_t> shape;  // of one layer, global
  std::vector<std::int64_t> shard;  // of one layer, on a rank
  std::string split;                // "tp dim 0 (5 blocks)", "ep dim 0, expt_tp dim 1", "-"
  std::vector<int> stages;          // ascending
  std::int64_t elements = 0;        // global, of all layers
  bool trainable = true;
};

// Layers of one kind; for parameters outside of layers, `kind` and `layers` are empty.
struct ParamGroup {
  std::string kind;
  std::vector<int> layers;
  std::vector<ParamRow> rows;
};

struct ModuleDescription {
  std::string name;  // language, images.encoder, images.projector
  std::vector<ParamGroup> groups;
  std::int64_t parameters = 0, buffers = 0;  // elements
};

// What each rank of a pipeline stage holds; all ranks of a stage hold equally much.
struct StageSize {
  std::int64_t elements = 0, bytes = 0;  // buffers included
};

struct GridDescription {
  std::string name;  // language, images
  LayoutSizes layout;
  std::vector<StageSize> stages;
};

struct ModelDescription {
  std::string provider, dtype;
  std::vector<ModuleDescription> modules;
  std::vector<GridDescription> grids;
  std::int64_t parameters = 0;         // of all modules
  std::int64_t active_parameters = 0;  // of the language model, per token: experts count top_k / experts
};

// `dtype` is bfloat16, float32 or float64. Throws a ConfigError with all problems that validate() finds.
ModelDescription describe_model(const Provider& provider, const ProviderLayout& layout, const std::string& dtype);

std::string show_model(const ModelDescription& model);
std::string model_json(const ModelDescription& model);

}  // namespace braid
