#include "models/providers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/strings.h"
#include "models/config_parts.h"
#include "nn/config.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

void append(std::vector<Problem>& all, std::vector<Problem> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

// One function per kind of encoder: a missing kind does not compile.
template <class... Functions>
struct ByKind : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
ByKind(Functions...) -> ByKind<Functions...>;

// Patches, or squares of patches, per embedding.
std::int64_t patches_per_row(const EncoderConfig& encoder) { return encoder.pixel_shuffle ? 4 : 1; }

std::int64_t nearest_multiple(std::int64_t size, std::int64_t unit) {
  return std::max<std::int64_t>(1, (size + unit / 2) / unit) * unit;
}

// Width of the features that the projector gets for each embedding.
int width_of(const EncoderConfig& encoder) {
  const int joined = static_cast<int>(patches_per_row(encoder));
  return std::visit(ByKind{[&](const RadioConfig& c) { return c.hidden * joined; },
                           [&](const ClipConfig& c) { return c.hidden * joined; },
                           [](const AudioConfig& c) { return c.feature_width(); }},
                    encoder.model);
}

std::vector<Problem> token_problems(const Provider& provider, const EncoderConfig& encoder, const std::string& where) {
  Checks checks(where);
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
  return checks.take();
}

// All images have one size, which must be whole patches, and with pixel shuffle whole squares of 2 x 2.
std::vector<Problem> side_problems(const ClipConfig& clip, bool pixel_shuffle, const std::string& where) {
  const std::int64_t side = clip.image_side, unit = std::int64_t{clip.patch} * (pixel_shuffle ? 2 : 1);
  if (side < 1 || unit < 1 || side % unit == 0) return {};
  Checks checks(where);
  const std::string sides = nearest_of("image_side", {side / unit * unit, (side / unit + 1) * unit}, side);
  const bool fits_without = side % clip.patch == 0;
  checks.add("image_side",
             fmt::format("image_side={} is not a multiple of {}: patches have {} x {} pixels{}", side, unit, clip.patch,
                         clip.patch, pixel_shuffle ? ", and 2 x 2 of them become one token" : ""),
             sides + (fits_without ? ", or pixel_shuffle=false" : ""));
  return checks.take();
}

std::vector<Problem> fit_problems(const Provider& provider, const EncoderConfig& encoder, const std::string& where) {
  Checks checks(where);
  const int input = width_of(encoder), output = hidden_of(provider.language);
  if (encoder.projector.input != input)
    checks.add(
        "input",
        fmt::format("the projector takes {} channels, but the encoder produces {}", encoder.projector.input, input),
        fmt::format("use input={}", input));
  if (encoder.projector.output != output)
    checks.add("output",
               fmt::format("the projector produces {} channels, but the language model takes {}",
                           encoder.projector.output, output),
               fmt::format("use output={}", output));
  return checks.take();
}

}  // namespace

void describe(Fields& fields, LanguageConfig& config) {
  std::visit([&](auto& c) { describe(fields, c); }, config);
}

void describe(Fields& fields, EncoderConfig& config) {
  std::visit([&](auto& c) { fields.section("encoder", c); }, config.model);
  fields.section("projector", config.projector);
  fields.field("pixel_shuffle", config.pixel_shuffle, "whether 2 x 2 patches become one token");
  std::vector<std::string> names;
  for (const PixelStats& stats : all_pixel_stats()) names.push_back(stats.name);
  fields.choice("pixel_stats", config.pixel_stats, names, "mean and deviation that normalize the pixels of images");
  fields.field("token_id", config.token_id, "id of the token that its embeddings replace");
}

const std::vector<Provider>& providers() {
  static const std::vector<Provider> all = {nemotron_vlm_20l(), nemotron_vlm_54l(), tiny_vlm(), tiny_llava(),
                                            tiny_omni()};
  return all;
}

std::vector<std::string> provider_names() {
  std::vector<std::string> names;
  for (const Provider& provider : providers()) names.push_back(provider.name);
  return names;
}

const Provider& provider(std::string_view name) {
  for (const Provider& candidate : providers())
    if (candidate.name == name) return candidate;
  const std::vector<std::string> names = provider_names();
  const auto guess = nearest(name, names);
  throw ConfigError(
      {fmt::format("unknown model provider '{}'", name), "",
       guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("use one of {}", fmt::join(names, ", "))});
}

std::vector<ParamSpec> declare_parameters(const LanguageConfig& config, int pp) {
  return std::visit([&](const auto& c) { return declare_parameters(c, pp); }, config);
}

std::vector<ParamSpec> declare_parameters(const EncoderModel& config, int pp) {
  return std::visit([&](const auto& c) { return declare_parameters(c, pp); }, config);
}

int hidden_of(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return c.hidden; }, config);
}

int vocab_of(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return c.vocab; }, config);
}

int experts_of(const LanguageConfig& config) {
  const auto* hybrid = std::get_if<HybridLmConfig>(&config);
  return hybrid && has_layer(*hybrid, 'E') ? hybrid->experts : 0;
}

int hidden_of(const EncoderModel& config) {
  return std::visit([](const auto& c) { return c.hidden; }, config);
}

std::int64_t rows_of(const EncoderConfig& encoder, const std::vector<std::int64_t>& extent) {
  const auto of_image = [&] { return extent.at(0) * extent.at(1) / patches_per_row(encoder); };
  return std::visit(
      ByKind{[&](const RadioConfig&) { return of_image(); }, [&](const ClipConfig&) { return of_image(); },
             [&](const AudioConfig& c) { return extent.at(0) / c.frames_per_token(); }},
      encoder.model);
}

std::int64_t hidden_rows_of(const EncoderModel& model, const std::vector<std::int64_t>& extent) {
  return std::visit(ByKind{[&](const RadioConfig& c) { return c.class_tokens + extent.at(0) * extent.at(1); },
                           [&](const ClipConfig&) { return 1 + extent.at(0) * extent.at(1); },
                           [&](const AudioConfig&) { return extent.at(0) / 2; }},
                    model);
}

int extent_dims(const EncoderModel& model) { return std::holds_alternative<AudioConfig>(model) ? 1 : 2; }

std::vector<std::int64_t> fitting_extent(const EncoderConfig& encoder, std::int64_t rows, std::int64_t columns) {
  using Extent = std::vector<std::int64_t>;
  const std::int64_t unit = encoder.pixel_shuffle ? 2 : 1;
  return std::visit(ByKind{[&](const RadioConfig&) {
                             return Extent{nearest_multiple(rows, unit), nearest_multiple(columns, unit)};
                           },
                           [](const ClipConfig& c) {
                             return Extent{c.patch_side(), c.patch_side()};
                           },
                           [&](const AudioConfig& c) { return Extent{nearest_multiple(rows, c.frames_per_token())}; }},
                    encoder.model);
}

int features_of(const EncoderModel& config) {
  return std::visit(ByKind{[](const RadioConfig& c) { return c.channels * c.patch * c.patch; },
                           [](const ClipConfig& c) { return c.channels * c.patch * c.patch; },
                           [](const AudioConfig& c) { return c.mels; }},
                    config);
}

std::vector<Problem> validate_language(const Provider& provider, const LayoutSizes& layout, const std::string& where) {
  return std::visit([&](const auto& c) { return validate(c, layout, where + ".language"); }, provider.language);
}

std::vector<Problem> validate_encoder(const Provider& provider, const EncoderConfig& encoder, const LayoutSizes& layout,
                                      const std::string& where) {
  const std::string here = fmt::format("{}.{}.", where, encoder.name);
  std::vector<Problem> problems = token_problems(provider, encoder, where + "." + encoder.name);
  append(problems, fit_problems(provider, encoder, here + "projector"));
  if (const auto* clip = std::get_if<ClipConfig>(&encoder.model))
    append(problems, side_problems(*clip, encoder.pixel_shuffle, here + "encoder"));
  append(problems, std::visit([&](const auto& c) { return validate(c, layout, here + "encoder"); }, encoder.model));
  append(problems, validate(encoder.projector, layout, here + "projector"));
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

// --- encoders

const EncoderConfig* find_encoder(const Provider& provider, std::string_view name) {
  const auto found = std::ranges::find(provider.encoders, name, &EncoderConfig::name);
  return found == provider.encoders.end() ? nullptr : &*found;
}

const EncoderConfig& encoder_named(const Provider& provider, std::string_view name) {
  const EncoderConfig* found = find_encoder(provider, name);
  if (!found) throw_check_failed(__FILE__, __LINE__, fmt::format("{} has no encoder '{}'", provider.name, name));
  return *found;
}

ItemRows rows_of_items(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents) {
  ItemRows rows;
  for (const std::vector<std::int64_t>& extent : extents) {
    const std::int64_t hidden = hidden_rows_of(config.model, extent);
    rows.embedded += std::holds_alternative<AudioConfig>(config.model) ? hidden : extent.at(0) * extent.at(1);
    rows.hidden += hidden;
    rows.embeddings += rows_of(config, extent);
    rows.longest = std::max(rows.longest, hidden);
    rows.squares += static_cast<double>(hidden) * static_cast<double>(hidden);
  }
  return rows;
}

// --- recomputation

namespace {

// An encoder's layers and Llama's have MLPs; of a hybrid's, the letters tell.
RecomputeConfig parts_of(const LanguageConfig& language, bool has_encoders) {
  RecomputeConfig parts = {.full = true, .norms = true, .activations = true, .vision = has_encoders};
  const auto* hybrid = std::get_if<HybridLmConfig>(&language);
  if (!hybrid) return parts;
  parts.experts = has_layer(*hybrid, 'E');
  parts.mamba = has_layer(*hybrid, 'M');
  parts.activations = has_encoders || has_layer(*hybrid, 'E') || has_layer(*hybrid, '-');
  return parts;
}

}  // namespace

std::vector<std::string> recompute_parts(const LanguageConfig& language, bool has_encoders) {
  return names_of(parts_of(language, has_encoders));
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

Widths widths_of(const LlamaConfig& c) { return {{"ffn", c.ffn}, {"heads", c.heads * c.head_dim}}; }
Widths widths_of(const HybridLmConfig& c) {
  return {{"ffn", c.ffn},
          {"heads", c.heads * c.head_dim},
          {"mamba_heads", c.mamba_heads * c.mamba_head_dim},
          {"expert_ffn", c.expert_ffn},
          {"shared_ffn", c.shared_ffn}};
}
template <class Encoder>
Widths widths_of(const Encoder& c) {
  return {{"ffn", c.ffn}};
}

std::string too_wide_key(const auto& config) {
  constexpr int kMostTimesHidden = 8;  // no model has more
  for (const auto& [key, width] : widths_of(config))
    if (width / kMostTimesHidden > config.hidden) return key;
  return "";
}

}  // namespace

bool is_toy(const Provider& provider) { return provider.name.starts_with("tiny-"); }

Keys size_keys(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return keys_of(c); }, config);
}

// The projector's input and output are checked against the encoder and the language model.
Keys size_keys(const EncoderConfig& config) {
  Keys keys;
  for (const std::string& key : std::visit([](const auto& c) { return keys_of(c); }, config.model))
    keys.push_back("encoder." + key);
  if (config.projector.kind == "mlp") keys.push_back("projector.hidden");
  return keys;
}

std::string key_of_wider_model(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return too_wide_key(c); }, config);
}

std::string key_of_wider_model(const EncoderConfig& config) {
  const std::string key = std::visit([](const auto& c) { return too_wide_key(c); }, config.model);
  return key.empty() ? "" : "encoder." + key;
}

}  // namespace braid
