#include "models/providers.h"
#include "base/strings.h"

namespace braid {
namespace {

template <class Kinds>
bool is_audio(const Kinds& model) {
  return std::holds_alternative<AudioConfig>(model);
}

// Patches, or squares of patches, per embedding.
std::int64_t patches_per_row(const EncoderConfig& encoder) { return encoder.pixel_shuffle ? 4 : 1; }

std::int64_t nearest_multiple(std::int64_t size, std::int64_t unit) {
  return std::max<std::int64_t>(1, (size + unit / 2) / unit) * unit;
}

void check_token(const Provider& provider, const EncoderConfig& encoder, Checks& checks) {
  const int id = encoder.token_id, vocab = vocab_of(provider.language);
  if (vocab == 1)
    checks.add("token_id", "a vocabulary of 1 has no token for media", "use a larger model.language.vocab");
  if (vocab > 1 && id == 0)
    checks.add(
        "token_id", "token_id=0 is the token that fills up short sequences",
        fmt::format("use token_id=1 to {}; if the tokenizer gives its media token the id 0, give it another id in "
                    "tokenizer.json",
                    vocab - 1));
  if (vocab > 1 && (id < 0 || id >= vocab))  // a vocabulary below 1 is reported as such
    checks.add("token_id",
               fmt::format("token_id={} must be between 1 and {}, the last token of the vocabulary", id, vocab - 1),
               fmt::format("use token_id=1 to {}", vocab - 1));
  for (const EncoderConfig& other : provider.encoders)
    if (other.token_id == id && other.name < encoder.name)
      checks.add("token_id", fmt::format("{} and {} both have token_id={}", other.name, encoder.name, id),
                 "give each encoder its own token");
}

void check_projector(const Provider& provider, const EncoderConfig& encoder, Checks& checks) {
  const auto check = [&](const std::string& field, int given, int wanted, const char* problem) {
    if (given != wanted)
      checks.add(("projector." + field).c_str(), fmt::format(fmt::runtime(problem), given, wanted),
                 fmt::format("use {}={}", field, wanted));
  };
  const auto* audio = std::get_if<AudioConfig>(&encoder.model);
  const std::int64_t width = audio ? audio->feature_width() : hidden_of(encoder.model) * patches_per_row(encoder);
  check("input", encoder.projector.input, static_cast<int>(width),
        "the projector takes {} channels, but the encoder produces {}");
  check("output", encoder.projector.output, hidden_of(provider.language),
        "the projector produces {} channels, but the language model takes {}");
}

// All images have one size, which must be whole patches, and with pixel shuffle whole squares of 2 x 2.
void check_side(const ClipConfig& clip, bool pixel_shuffle, Checks& checks) {
  const std::int64_t side = clip.image_side, unit = std::int64_t{clip.patch} * (pixel_shuffle ? 2 : 1);
  if (side < 1 || unit < 1 || side % unit == 0) return;
  const std::string sides = nearest_of("image_side", {side / unit * unit, (side / unit + 1) * unit}, side);
  const bool fits_without = side % clip.patch == 0;
  checks.add("encoder.image_side",
             fmt::format("image_side={} is not a multiple of {}: patches have {} x {} pixels{}", side, unit, clip.patch,
                         clip.patch, pixel_shuffle ? ", and 2 x 2 of them become one token" : ""),
             sides + (fits_without ? ", or pixel_shuffle=false" : ""));
}

}  // namespace

void describe(Fields& fields, LanguageConfig& config) {
  std::visit([&](auto& c) { describe(fields, c); }, config);
}

void describe(Fields& fields, EncoderConfig& config) {
  std::visit([&](auto& c) { fields.section("encoder", c); }, config.model);
  fields.section("projector", config.projector);
  fields.field("pixel_shuffle", config.pixel_shuffle, "whether 2 x 2 patches become one token");
  const auto names = vector_of<std::string>(all_pixel_stats(), &PixelStats::name);
  fields.choice("pixel_stats", config.pixel_stats, names, "mean and deviation that normalize the pixels of images");
  fields.field("token_id", config.token_id, "id of the token that its embeddings replace");
}

std::vector<std::string> provider_names() { return vector_of<std::string>(providers(), &Provider::name); }

const Provider& provider(std::string_view name) {
  const auto known = std::ranges::find(providers(), name, &Provider::name);
  if (known != providers().end()) return *known;
  const std::vector<std::string> names = provider_names();
  const auto guess = nearest(name, names);
  throw ConfigError({fmt::format("unknown model provider '{}'", name), "",
                     guess ? fmt::format("did you mean '{}'?", *guess) : "use one of " + joined(names, ", ")});
}

int experts_of(const LanguageConfig& config) {
  const auto* hybrid = std::get_if<HybridLmConfig>(&config);
  return hybrid && has_layer(*hybrid, 'E') ? hybrid->experts : 0;
}

std::int64_t rows_of(const EncoderConfig& encoder, const std::vector<std::int64_t>& extent) {
  if (const auto* audio = std::get_if<AudioConfig>(&encoder.model)) return extent.at(0) / audio->frames_per_token();
  return extent.at(0) * extent.at(1) / patches_per_row(encoder);
}

std::int64_t hidden_rows_of(const EncoderModel& model, const std::vector<std::int64_t>& extent) {
  static_assert(kEncoderKinds == 3, "RADIO, CLIP and audio");
  if (is_audio(model)) return extent.at(0) / 2;
  const auto* radio = std::get_if<RadioConfig>(&model);
  return (radio ? radio->class_tokens : 1) + extent.at(0) * extent.at(1);
}

std::vector<std::int64_t> fitting_extent(const EncoderConfig& encoder, std::int64_t rows, std::int64_t columns) {
  const std::int64_t unit = encoder.pixel_shuffle ? 2 : 1;
  if (const auto* audio = std::get_if<AudioConfig>(&encoder.model))
    return {nearest_multiple(rows, audio->frames_per_token())};
  if (const auto* clip = std::get_if<ClipConfig>(&encoder.model)) return {clip->patch_side(), clip->patch_side()};
  return {nearest_multiple(rows, unit), nearest_multiple(columns, unit)};
}

int features_of(const EncoderModel& config) {
  const auto features = []<class Config>(const Config& c) {
    if constexpr (std::is_same_v<Config, AudioConfig>)
      return c.mels;
    else
      return c.channels * c.patch * c.patch;
  };
  return std::visit(features, config);
}

std::vector<Problem> validate_language(const Provider& provider, const LayoutSizes& layout, const std::string& where) {
  return std::visit([&](const auto& c) { return validate(c, layout, where + ".language"); }, provider.language);
}

std::vector<Problem> validate_encoder(const Provider& provider, const EncoderConfig& encoder, const LayoutSizes& layout,
                                      const std::string& where) {
  const std::string here = where + "." + encoder.name;
  Checks checks(here);
  check_token(provider, encoder, checks);
  check_projector(provider, encoder, checks);
  if (const auto* clip = std::get_if<ClipConfig>(&encoder.model)) check_side(*clip, encoder.pixel_shuffle, checks);
  std::vector<Problem> problems = checks.take();
  append(problems, std::visit([&](const auto& c) { return validate(c, layout, here + ".encoder"); }, encoder.model));
  append(problems, validate(encoder.projector, layout, here + ".projector"));
  return problems;
}

const std::vector<PixelStats>& all_pixel_stats() {
  static const std::vector<PixelStats> all = {
      {"clip", {0.48145466, 0.4578275, 0.40821073}, {0.26862954, 0.26130258, 0.27577711}},
      {"siglip", {0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}},
      {"imagenet", {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
      {"radio-g", {0.485, 0.456, 0.406}, {0.223, 0.224, 0.225}},
      {"none", {0, 0, 0}, {1, 1, 1}}};
  return all;
}

const EncoderConfig* find_encoder(const Provider& provider, std::string_view name) {
  const auto found = std::ranges::find(provider.encoders, name, &EncoderConfig::name);
  return found == provider.encoders.end() ? nullptr : &*found;
}

const EncoderConfig& encoder_named(const Provider& provider, std::string_view name) {
  const EncoderConfig* found = find_encoder(provider, name);
  BRAID_CHECK(found, "{} has no encoder '{}'", provider.name, name);
  return *found;
}

ItemRows rows_of_items(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents) {
  ItemRows rows;
  for (const std::vector<std::int64_t>& extent : extents) {
    const std::int64_t hidden = hidden_rows_of(config.model, extent);
    rows.embedded += is_audio(config.model) ? hidden : extent.at(0) * extent.at(1);
    rows.hidden += hidden;
    rows.embeddings += rows_of(config, extent);
    rows.longest = std::max(rows.longest, hidden);
    rows.squares += static_cast<double>(hidden) * static_cast<double>(hidden);
  }
  return rows;
}

// An encoder's layers and Llama's have MLPs; of a hybrid's, the letters tell.
std::vector<std::string> recompute_parts(const LanguageConfig& language, bool has_encoders) {
  RecomputeConfig parts = {.full = true, .norms = true, .activations = true, .vision = has_encoders};
  if (const auto* hybrid = std::get_if<HybridLmConfig>(&language)) {
    parts.experts = has_layer(*hybrid, 'E');
    parts.mamba = has_layer(*hybrid, 'M');
    parts.activations = has_encoders || has_layer(*hybrid, 'E') || has_layer(*hybrid, '-');
  }
  return names_of(parts);
}

// --- sizes of small models

namespace {

using Keys = std::vector<std::string>;

Keys keys_of(const LlamaConfig&) { return {"layers", "vocab", "heads", "kv_heads", "head_dim", "ffn"}; }

// Only the layers that the pattern has need sizes; all models have convolutions of the same length.
Keys keys_of(const HybridLmConfig& config) {
  Keys keys = {"pattern", "vocab"};
  for (const auto& [letter, key, value, help] : kLayerSizes)
    if (has_layer(config, letter) && value != &HybridLmConfig::mamba_conv) keys.emplace_back(key);
  return keys;
}

Keys keys_of(const RadioConfig&) { return {"layers", "heads", "ffn", "position_side", "class_tokens"}; }
Keys keys_of(const ClipConfig&) { return {"layers", "heads", "ffn", "image_side", "patch"}; }
Keys keys_of(const AudioConfig&) { return {"layers", "heads", "ffn", "mels", "stack"}; }

using Widths = std::vector<std::pair<const char*, int>>;  // by key

template <class Config>
Widths widths_of(const Config& c) {
  Widths widths = {{"ffn", c.ffn}};
  if constexpr (requires { c.head_dim; }) widths.emplace_back("heads", c.heads * c.head_dim);
  if constexpr (requires { c.mamba_heads; })
    widths.insert(widths.end(), {{"mamba_heads", c.mamba_heads * c.mamba_head_dim},
                                 {"expert_ffn", c.expert_ffn},
                                 {"shared_ffn", c.shared_ffn}});
  return widths;
}

template <class Kinds>
std::string too_wide_key(const Kinds& model) {
  constexpr int kMostTimesHidden = 8;  // no model has more
  for (const auto& [key, width] : std::visit([](const auto& c) { return widths_of(c); }, model))
    if (width / kMostTimesHidden > hidden_of(model)) return key;
  return "";
}

}  // namespace

Keys size_keys(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return keys_of(c); }, config);
}

// The projector's input and output are checked against the encoder and the language model.
Keys size_keys(const EncoderConfig& config) {
  Keys keys = std::visit([](const auto& c) { return keys_of(c); }, config.model);
  for (std::string& key : keys) key.insert(0, "encoder.");
  if (config.projector.kind == ProjectorKind::Mlp) keys.push_back("projector.hidden");
  return keys;
}

std::string key_of_wider_model(const LanguageConfig& config) { return too_wide_key(config); }

std::string key_of_wider_model(const EncoderConfig& config) {
  const std::string key = too_wide_key(config.model);
  return key.empty() ? "" : "encoder." + key;
}

}  // namespace braid
