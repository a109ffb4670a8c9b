// Whole models a user can name: a language model and the encoders that feed it, as data. No libtorch here.
#pragma once

#include <optional>
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

// One modality: what turns it into rows of the language model's width, and the token those rows replace.
struct EncoderConfig {
  std::string name = "images";  // of the topology's module that runs it
  EncoderModel model{};
  ProjectorConfig projector{};
  bool pixel_shuffle = true;  // of images: 2 x 2 patches become one token
  std::string token = "<image>";
  int mock_token_id = 511;  // stands for the token where there is no tokenizer
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

// ConfigError with the nearest name when there is none of this one.
const Provider& provider(std::string_view name);

// Of either variant. The projector lives where the encoder ends, on its last stage.
std::vector<ParamSpec> declare_parameters(const LanguageConfig& config, int pp);
std::vector<ParamSpec> declare_parameters(const EncoderModel& config, int pp);

int hidden_of(const LanguageConfig& config);
int vocab_of(const LanguageConfig& config);
int experts_of(const LanguageConfig& config);  // 0: none
int hidden_of(const EncoderModel& config);

// Rows that one item becomes. `extent`: of an image, rows and columns in patches; of a sound, frames.
std::int64_t rows_of(const EncoderConfig& encoder, const std::vector<std::int64_t>& extent);
// Rows that it is inside the encoder, from stage to stage.
std::int64_t hidden_rows_of(const EncoderModel& model, const std::vector<std::int64_t>& extent);
// Numbers in an extent.
int extent_dims(const EncoderModel& model);
// The extent nearest to the one wanted that the encoder can take; of a sound, only the first number counts.
std::vector<std::int64_t> fitting_extent(const EncoderConfig& encoder, std::int64_t rows, std::int64_t columns);
// Numbers that describe one patch or frame.
int features_of(const EncoderModel& config);

// The id that stands for an encoder's token in the text: the tokenizer's, or without one the mock default. ConfigError
// when the vocabulary has no such id.
int token_id(const Provider& provider, const EncoderConfig& encoder, std::optional<int> from_tokenizer);

// Why the model makes no sense or cannot run in these layouts; `where` of each is "<where>.language.<field>" or
// "<where>.<encoder>.encoder.<field>".
std::vector<Problem> validate_language(const Provider& provider, const LayoutSizes& layout, const std::string& where);
std::vector<Problem> validate_encoder(const Provider& provider, const EncoderConfig& encoder, const LayoutSizes& layout,
                                      const std::string& where);

// Each in the file of its name.
Provider nemotron_vlm_20l();
Provider nemotron_vlm_54l();
Provider tiny_llava();
Provider tiny_omni();
Provider tiny_vlm();

}  // namespace braid
