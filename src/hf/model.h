// A model in a folder: as Hugging Face stores it (config.json and its own tensor names), or as Braid does (model.yaml
// and whole parameters under our names). Both are opened the same way, checked before anything is loaded, and converted
// into each other bit for bit.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "ckpt/tensor_io.h"
#include "models/configs.h"

namespace braid {

using HfConfig = std::variant<HybridLmConfig, RadioConfig>;

struct StoredModel {
  HfConfig config;
  SafetensorsReader source;
  TensorsOfParam tensors;  // all tensors of the file that belong to the model, by our parameters' names
  std::string hf_config;   // config.json of this Hugging Face folder or of the one it was imported from; may be empty
};

// A Hugging Face folder with model_type nemotron_h or radio.
StoredModel open_hf_model(const std::string& folder);
StoredModel open_model(const std::string& folder);  // the same, or a folder that import_hf() wrote

// The model's tensors under every naming scheme: of this folder, of published checkpoints, of transformers' modules.
std::vector<ForeignTensor> all_spellings(const StoredModel& model);

// Fills a rank's shard of a parameter.
void load(const StoredModel& model, const ParamSpec& spec, const ShardCoordinates& coordinates, at::Tensor& local);

struct WrittenModel {
  std::int64_t tensors, bytes;
};

// Each reads one tensor at a time and refuses to write into a folder that is not empty.
WrittenModel import_hf(const std::string& hf_folder, const std::string& braid_folder);
WrittenModel export_hf(const std::string& braid_folder, const std::string& hf_folder);

// Whole parameters of a model by our names, from any source.
struct WholeParameters {
  HfConfig config{};
  std::string hf_config{};                    // config.json of the imported model; may be empty
  std::string where{};                        // for messages
  std::map<std::string, TensorInfo> infos{};  // of every parameter, and of summary indices if any
  std::function<at::Tensor(const std::string&)> read{};
};
WrittenModel export_hf(const WholeParameters& parameters, const std::string& hf_folder);

// --- hf/architectures.cpp: the models as transformers stores them, their config.json, and their tensors under the
// names of published checkpoints or of transformers' own modules

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
