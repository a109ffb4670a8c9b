// Whole models that a user can name: a language model and the encoders that feed it, as data. No libtorch here.
#pragma once

#include "models/configs.h"

namespace braid {

using LanguageConfig = std::variant<HybridLmConfig, LlamaConfig>;         // built by Decoder
using EncoderModel = std::variant<RadioConfig, ClipConfig, AudioConfig>;  // built by Encoder
// Code that treats some kinds alike asserts this count, so that a new kind does not compile until it is considered
// there.
inline constexpr std::size_t kEncoderKinds = std::variant_size_v<EncoderModel>;

// The mean and standard deviation by which an image encoder expects its pixels to be normalized, by channel, for pixels
// from 0 to 1.
struct PixelStats {
  std::string name;
  std::array<double, 3> mean, std;
};
const std::vector<PixelStats>& all_pixel_stats();

// One modality: the encoder and projector that turn it into embeddings, and the token that these replace.
struct EncoderConfig {
  std::string name = "images";  // the topology's module that runs it
  EncoderModel model{};
  ProjectorConfig projector{};
  bool pixel_shuffle = true;         // of images: 2 x 2 patches become one token
  std::string pixel_stats = "clip";  // of images: see all_pixel_stats()
  std::string token = "<image>";
  int token_id = 511;  // in the vocabulary; a tokenizer must agree
};

struct Provider {
  std::string name{};
  LanguageConfig language{};
  std::vector<EncoderConfig> encoders{};
  int sequence_length = 8192;
};

void describe(Fields& fields, LanguageConfig& config);
void describe(Fields& fields, EncoderConfig& config);

const std::vector<Provider>& providers();  // those of models/known_models.cpp
Provider tiny_llava();
Provider tiny_omni();
Provider tiny_vlm();
std::vector<std::string> provider_names();

// Throws a ConfigError with the nearest known name for an unknown one.
const Provider& provider(std::string_view name);

// Of any language model, and of any encoder.
template <class... Kinds>
std::vector<ParamSpec> declare_parameters(const std::variant<Kinds...>& config, int pp) {
  return std::visit([&](const auto& c) { return declare_parameters(c, pp); }, config);
}
template <class... Kinds>
int hidden_of(const std::variant<Kinds...>& config) {
  return std::visit([](const auto& c) { return c.hidden; }, config);
}
inline int vocab_of(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return c.vocab; }, config);
}
int experts_of(const LanguageConfig& config);  // 0: none

// Embeddings that one item becomes. `extent`: of an image, rows and columns in patches; of an audio clip, frames.
std::int64_t rows_of(const EncoderConfig& encoder, const std::vector<std::int64_t>& extent);
// Tokens per item inside the encoder, from stage to stage.
std::int64_t hidden_rows_of(const EncoderModel& model, const std::vector<std::int64_t>& extent);
// How many numbers an extent has.
inline int extent_dims(const EncoderModel& model) { return std::holds_alternative<AudioConfig>(model) ? 1 : 2; }
// The nearest extent to the given one that the encoder accepts; of an audio clip, only the first number counts.
std::vector<std::int64_t> fitting_extent(const EncoderConfig& encoder, std::int64_t rows, std::int64_t columns);
// Features of one patch or frame.
int features_of(const EncoderModel& config);

// As validate() of the config; "<where>.language.<field>" or "<where>.<encoder>.encoder.<field>".
std::vector<Problem> validate_language(const Provider& provider, const LayoutSizes& layout, const std::string& where);
std::vector<Problem> validate_encoder(const Provider& provider, const EncoderConfig& encoder, const LayoutSizes& layout,
                                      const std::string& where);

const EncoderConfig* find_encoder(const Provider& provider, std::string_view name);   // null: it has none
const EncoderConfig& encoder_named(const Provider& provider, std::string_view name);  // that must exist

// Sums over the items of a microbatch, unless said otherwise.
struct ItemRows {
  std::int64_t embedded = 0;    // patches, or pairs of frames
  std::int64_t hidden = 0;      // tokens inside the encoder
  std::int64_t embeddings = 0;  // for the language model
  std::int64_t longest = 0;     // tokens of one item
  double squares = 0;           // of the items' tokens, which attend to each other
};
ItemRows rows_of_items(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents);

// What there is to compute again in backward (model.recompute): the recompute_names() that change something for this
// language model, together with its encoders if it has any.
std::vector<std::string> recompute_parts(const LanguageConfig& language, bool has_encoders);

// The small providers are models for tests: their sizes suit only their own width, so a recipe that sets another
// `hidden`, or a size that is too large for it, must set the keys of the other sizes, too.
inline bool is_toy(const Provider& provider) { return provider.name.starts_with("tiny-"); }

// Relative to the model's section, without `hidden`: "vocab"; of an encoder, "encoder.layers" and "projector.hidden".
std::vector<std::string> size_keys(const LanguageConfig& config);
std::vector<std::string> size_keys(const EncoderConfig& config);

// A size that belongs to a wider model, in the same form: "ffn" if it is more than 8 times `hidden`; "heads" if all
// heads together are. Empty if there is none.
std::string key_of_wider_model(const LanguageConfig& config);
std::string key_of_wider_model(const EncoderConfig& config);

}  // namespace braid
