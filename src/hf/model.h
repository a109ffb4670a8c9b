// A model in a folder: as Hugging Face stores it (config.json and its own tensor names), or as Braid does (model.yaml
// and whole parameters under our names). Both are opened the same way, checked before anything is loaded, and converted
// into each other bit for bit.
#pragma once

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

}  // namespace braid
