// The hybrid language model as Hugging Face transformers stores it (model_type nemotron_h): its config.json, and its
// tensors under the names of published checkpoints or of transformers' own modules. No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "ckpt/foreign_tensors.h"
#include "models/hybrid_lm_config.h"

namespace braid {

struct NemotronHSpelling {
  std::string prefix = "backbone.";  // transformers' modules: "model."
  bool stacked_experts = false;      // one tensor [experts, ...], as in the modules, or one for each expert
};

NemotronHSpelling nemotron_h_spelling(const SafetensorsReader& source);

// One ConfigError lists everything in config.json that is invalid or that Braid's model does not support; `where` is
// the file's path.
HybridLmConfig nemotron_h_config(const nlohmann::json& config, const std::string& where);

// `original` is the config.json from the import, or an empty object; keys that only transformers uses are kept from it.
nlohmann::json nemotron_h_json(const HybridLmConfig& config, const nlohmann::json& original, const std::string& where);

std::vector<ForeignTensor> nemotron_h_tensors(const HybridLmConfig& config, const NemotronHSpelling& spelling);

// Tensors of checkpoints that are not part of the model: multi-token prediction.
std::vector<std::string> nemotron_h_ignorable();

}  // namespace braid
