// The models that Braid reads from and writes to Hugging Face folders, as transformers stores them: their config.json,
// and their tensors under the names of published checkpoints or of transformers' own modules. No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ckpt/tensor_io.h"
#include "models/configs.h"

namespace braid {

// Reads a config.json. Python writes Infinity and NaN as bare words, which are not JSON; here they become
// {"__float__": "Infinity"}, as newer versions of transformers write them. Lists and objects may be nested 32 deep,
// since copying and printing them is recursive. `name` is for messages.
nlohmann::json parse_hf_json(const std::string& text, const std::string& name);

// A value for a message: as JSON, shortened if long.
std::string value_text(const nlohmann::json& value);

// --- the hybrid language model (model_type nemotron_h)

struct NemotronHSpelling {
  std::string prefix = "backbone.";  // transformers' modules: "model."
  bool stacked_experts = false;      // one tensor [experts, ...], as in the modules, or one for each expert
};

NemotronHSpelling nemotron_h_spelling(const SafetensorsReader& source);

// One ConfigError lists everything in config.json that is invalid or unsupported; `where` is the file's path.
HybridLmConfig nemotron_h_config(const nlohmann::json& config, const std::string& where);

// `original` is the config.json from the import, or an empty object; keys that only transformers uses are kept from it.
nlohmann::json nemotron_h_json(const HybridLmConfig& config, const nlohmann::json& original, const std::string& where);

std::vector<ForeignTensor> nemotron_h_tensors(const HybridLmConfig& config, const NemotronHSpelling& spelling);

// --- the RADIO vision transformer (model_type radio)

struct RadioSpelling {
  bool modules = false;  // names of transformers' modules, where query, key and value are three tensors
};

inline RadioSpelling radio_spelling(const SafetensorsReader& source) {
  return {.modules = source.find("embeddings.position_embedding") != nullptr};
}

// One ConfigError lists everything in config.json that is invalid or that Braid's model does not support. The weights
// show whether there is a layer scale: if they have none, transformers uses layerscale_value.
RadioConfig radio_config(const nlohmann::json& config, const SafetensorsReader& source, const std::string& where);

// `original` is the config.json from the import, or an empty object; keys that only transformers uses are kept from it.
nlohmann::json radio_json(const RadioConfig& config, const nlohmann::json& original, const std::string& where);

std::vector<ForeignTensor> radio_tensors(const RadioConfig& config, const RadioSpelling& spelling);

// Which class tokens transformers puts into its summary: kept under this name for export only.
inline constexpr const char* kRadioSummary = "summary_idxs";
ForeignTensor radio_summary_tensor(const RadioSpelling& spelling, std::int64_t count);

}  // namespace braid
