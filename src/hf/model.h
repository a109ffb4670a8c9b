// A model in a folder: as Hugging Face writes it (config.json and its own tensor names), or as Braid does (model.yaml
// and whole parameters under our names). Both are opened the same way, checked before anything is loaded, and converted
// into each other without changing a bit.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/foreign_tensors.h"
#include "models/hybrid_lm_config.h"
#include "models/radio_config.h"

namespace at {
class Tensor;
}

namespace braid {

using HfConfig = std::variant<HybridLmConfig, RadioConfig>;

struct StoredModel {
  HfConfig config;
  SafetensorsReader source;
  TensorsOfParam tensors;  // all of the file that belong to the model, by our parameters' names
  std::string hf_config;   // config.json of the Hugging Face folder it is or came from; may be empty
};

// A Hugging Face folder with model_type nemotron_h or radio.
StoredModel open_hf_model(const std::string& folder);

// A folder that import_hf() wrote.
StoredModel open_braid_model(const std::string& folder);

StoredModel open_model(const std::string& folder);  // either

// The model's tensors under every name they go by: in this folder, in published checkpoints, in transformers' modules.
std::vector<ForeignTensor> all_spellings(const StoredModel& model);

// Fills a rank's shard of a parameter.
void load(const StoredModel& model, const ParamSpec& spec, const ShardPlace& place, at::Tensor& local);

struct WrittenModel {
  std::int64_t tensors, bytes;
};

// Each reads one tensor at a time and refuses to write into a folder that has something in it.
WrittenModel import_hf(const std::string& hf_folder, const std::string& braid_folder);
WrittenModel export_hf(const std::string& braid_folder, const std::string& hf_folder);

// Whole parameters of a model by our names, wherever they come from.
struct WholeParameters {
  HfConfig config{};
  std::string hf_config{};                                 // config.json that the model came with; may be empty
  std::string where{};                                     // for messages
  std::map<std::string, TensorInfo> infos{};               // of every parameter; and of summary indices, if any
  std::function<StoredTensor(const std::string&)> read{};  // its data live until the next call
};
WrittenModel export_hf(const WholeParameters& parameters, const std::string& hf_folder);

}  // namespace braid
