// Whole models that a user can name: a language model and the encoders that feed it, as data. No libtorch here.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "models/audio_config.h"
#include "models/clip_config.h"
#include "models/hybrid_lm_config.h"
#include "models/llama_config.h"
#include "models/projector_config.h"
#include "models/radio_config.h"

namespace braid {

// Every kind of model has overloads of describe(), declare_parameters() and validate() in its own header, and a stage
// in models/stages.cpp.
using LanguageConfig = std::variant<HybridLmConfig, LlamaConfig>;
using EncoderModel = std::variant<RadioConfig, ClipConfig, AudioConfig>;

// One modality: the encoder and projector that turn it into embeddings, and the token that these replace.
struct EncoderConfig {
  std::string name = "images";  // the topology's module that runs it
  EncoderModel model{};
  ProjectorConfig projector{};
  bool pixel_shuffle = true;         // of images: 2 x 2 patches become one token
  std::string pixel_stats = "clip";  // of images: see models/pixel_stats.h
  std::string token = "<image>";
  int token_id = 511;  // in the vocabulary; a tokenizer must agree
};

struct Provider {
  std::string name{};
  LanguageConfig language{};
  std::vector<EncoderConfig> encoders{};
  int sequence_length = 8192;
  bool dynamic_resolution = true;
  bool tiling = false, thumbnail = false;
};

void describe(Fields& fields, LanguageConfig& config);
void describe(Fields& fields, EncoderConfig& config);

const std::vector<Provider>& providers();
std::vector<std::string> provider_names();

// Throws a ConfigError with the nearest known name for an unknown one.
const Provider& provider(std::string_view name);

// Of either variant. The projector is on the encoder's last stage.
std::vector<ParamSpec> declare_parameters(const LanguageConfig& config, int pp);
std::vector<ParamSpec> declare_parameters(const EncoderModel& config, int pp);

int hidden_of(const LanguageConfig& config);
int vocab_of(const LanguageConfig& config);
int experts_of(const LanguageConfig& config);  // 0: none
int hidden_of(const EncoderModel& config);

// Embeddings that one item becomes. `extent`: of an image, rows and columns in patches; of an audio clip, frames.
std::int64_t rows_of(const EncoderConfig& encoder, const std::vector<std::int64_t>& extent);
// Tokens per item inside the encoder, from stage to stage.
std::int64_t hidden_rows_of(const EncoderModel& model, const std::vector<std::int64_t>& extent);
// How many numbers an extent has.
int extent_dims(const EncoderModel& model);
// The nearest extent to the given one that the encoder accepts; of an audio clip, only the first number counts.
std::vector<std::int64_t> fitting_extent(const EncoderConfig& encoder, std::int64_t rows, std::int64_t columns);
// Features of one patch or frame.
int features_of(const EncoderModel& config);

// Why the model is invalid or does not support these layouts; `where` of each problem is "<where>.language.<field>" or
// "<where>.<encoder>.encoder.<field>".
std::vector<Problem> validate_language(const Provider& provider, const LayoutSizes& layout, const std::string& where);
std::vector<Problem> validate_encoder(const Provider& provider, const EncoderConfig& encoder, const LayoutSizes& layout,
                                      const std::string& where);

// Each is defined in the file of its name.
Provider nemotron_vlm_20l();
Provider nemotron_vlm_54l();
Provider tiny_llava();
Provider tiny_omni();
Provider tiny_vlm();

}  // namespace braid
