// The RADIO vision transformer as Hugging Face transformers stores it (model_type radio): its config.json, and its
// tensors under the names of published checkpoints or of transformers' own modules. No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "ckpt/foreign_tensors.h"
#include "models/radio_config.h"

namespace braid {

struct RadioSpelling {
  bool modules = false;  // names of transformers' modules, where query, key and value are three tensors
};

RadioSpelling radio_spelling(const SafetensorsReader& source);

// Everything in config.json that Braid's model does not do, or that makes no sense, is in one ConfigError. The weights
// say whether there is a layer scale: transformers takes it as layerscale_value where they have none.
RadioConfig radio_config(const nlohmann::json& config, const SafetensorsReader& source, const std::string& where);

// `original`, the config.json the model was imported with or an empty object, keeps what only transformers cares about.
nlohmann::json radio_json(const RadioConfig& config, const nlohmann::json& original, const std::string& where);

std::vector<ForeignTensor> radio_tensors(const RadioConfig& config, const RadioSpelling& spelling);

// Which class tokens transformers puts in its summary: kept for export only, under this name.
inline constexpr const char* kRadioSummary = "summary_idxs";
ForeignTensor radio_summary_tensor(const RadioSpelling& spelling, std::int64_t count);

}  // namespace braid
