#include "data/samples/sequence_settings.h"

#include "base/strings.h"

namespace braid {

std::vector<std::pair<std::string, std::string>> sequence_settings(const DataConfig& config, const Tokenizer& tokenizer,
                                                                   const std::optional<VisionInput>& vision,
                                                                   std::int64_t capacity) {
  std::vector<std::pair<std::string, std::string>> settings;
  const auto add = [&](const char* name, const auto& value) { settings.emplace_back(name, fmt::format("{}", value)); };
  const auto add_text = [&](const char* name, const std::string& text) { add(name, in_quotes(text)); };
  add("data.sequence_length", capacity);
  add("data.tokenizer", tokenizer.fingerprint());
  add_text("data.prompt_format", config.prompt_format);
  add_text("data.image_tag", config.image_tag);
  add_text("data.system", config.system);
  add_text("data.date", config.date);
  add("data.append_eod", config.append_eod);
  add_text("data.over_long", config.over_long);
  add_text("data.fields.images", config.fields.images);
  add_text("data.fields.conversation", config.fields.conversation);
  add_text("data.fields.tools", config.fields.tools);
  add_text("data.fields.question", config.fields.question);
  add_text("data.fields.answer", config.fields.answer);
  add_text("data.fields.caption", config.fields.caption);
  add_text("data.fields.text", config.fields.text);
  const PictureConfig& pictures = config.pictures;
  add_text("data.pictures.fit", pictures.fit);
  add("data.pictures.min_patches", pictures.min_patches);
  add("data.pictures.max_patches", pictures.max_patches);
  add("data.pictures.min_side", pictures.min_side);
  add("data.pictures.tile_side", pictures.tile_side);
  add("data.pictures.max_tiles", pictures.max_tiles);
  add("data.pictures.thumbnail", pictures.thumbnail);
  add("data.pictures.orient", pictures.orient);
  add("the vision encoder's input",
      vision ? fmt::format("patches of {} pixels, {} per embedding, {}", vision->patch, vision->pixel_shuffle ? 4 : 1,
                           vision->square ? fmt::format("{0} x {0} patches", *vision->square) : "any size")
             : "none");
  return settings;
}

}  // namespace braid
