#include "data/samples/token_sequence.h"
#include <nlohmann/json.hpp>
#include "base/strings.h"

namespace braid {
namespace {

MediaPlan whole_picture(std::size_t picture, const CellGrid& patches, const VisionInput& vision) {
  return {.picture = picture,
          .resized = patches.pixels(vision.patch),
          .patches = patches,
          .embeddings = embedding_count(patches, vision.pixel_shuffle)};
}

std::vector<MediaPlan> tiles_of(std::size_t picture, const CellGrid& tiles, const TilingConfig& config,
                                const VisionInput& vision) {
  const int side = config.tile / vision.patch;
  std::vector<MediaPlan> plans;
  for (int row = 0; row < tiles.rows; ++row)
    for (int column = 0; column < tiles.columns; ++column) {
      plans.push_back(whole_picture(picture, {side, side}, vision));
      plans.back().resized = tiles.pixels(config.tile);
      plans.back().tile_column = column;
      plans.back().tile_row = row;
    }
  if (tile_count(tiles, config) > tiles.cells()) plans.push_back(whole_picture(picture, {side, side}, vision));
  return plans;
}

constexpr std::int64_t kRoomForMarkers = 4;  // tokens that Megatron keeps free when it fits pictures into a sequence

}  // namespace

std::vector<std::span<const MediaPlan>> by_picture(std::span<const MediaPlan> media) {
  std::vector<std::span<const MediaPlan>> groups;
  for (std::size_t i = 0; i < media.size(); ++i) {
    if (i == 0 || media[i].picture != media[i - 1].picture) groups.push_back(media.subspan(i, 0));
    groups.back() = {groups.back().data(), groups.back().size() + 1};
  }
  return groups;
}

std::vector<std::vector<MediaPlan>> plan_pictures(const std::vector<PixelSize>& pictures, std::int64_t room,
                                                  const PictureConfig& config, const VisionInput& vision) {
  const int side = vision.square.value_or(config.tile_side / vision.patch);
  const bool is_square = vision.square || config.fit == PictureFit::Square,
             has_tiles = !is_square && config.fit == PictureFit::Tiles;
  const TilingConfig tiling = {.tile = config.tile_side, .max_tiles = config.max_tiles, .thumbnail = config.thumbnail};
  const std::vector<CellGrid> grids =
      is_square   ? std::vector<CellGrid>(pictures.size(), {side, side})
      : has_tiles ? fit_tiles(pictures, room, embedding_count({side, side}, vision.pixel_shuffle), tiling)
                  : fit_images(pictures, room,
                               {.patch = vision.patch,
                                .min_patches = config.min_patches,
                                .max_patches = config.max_patches,
                                .min_side = config.min_side,
                                .divisor = vision.pixel_shuffle ? 2 : 1});
  std::vector<std::vector<MediaPlan>> plans;
  for (std::size_t i = 0; i < grids.size(); ++i)
    plans.push_back(has_tiles ? tiles_of(i, grids[i], tiling, vision)
                              : std::vector{whole_picture(i, grids[i], vision)});
  return plans;
}

Image decode_for(const SamplePart& picture, std::span<const MediaPlan> inputs, const PictureConfig& config) {
  DecodeOptions options = {.orient = config.orient};
  if (config.scaled_decode) {
    PixelSize largest;
    for (const MediaPlan& input : inputs)
      largest = {std::max(largest.width, input.resized.width), std::max(largest.height, input.resized.height)};
    options.scale_for = largest;
  }
  return decode(picture.file(), picture.name, options);
}

void write_patches(const Image& decoded, std::span<const MediaPlan> inputs, const PictureConfig& config, int patch,
                   std::span<std::uint8_t> rows) {
  constexpr std::uint8_t kGrey = 128;
  if (config.blank) return std::fill(rows.begin(), rows.end(), kGrey);
  std::optional<Image> resized;
  std::size_t written = 0;
  for (const MediaPlan& input : inputs) {
    if (!resized || resized->size() != input.resized) resized = resize(decoded, input.resized, config.filter);
    const auto size = static_cast<std::size_t>(input.patches.pixels(patch).pixels() * 3);
    BRAID_CHECK(size <= rows.size() - written, "{} bytes do not hold the patches", rows.size());
    const auto own = rows.subspan(std::exchange(written, written + size), size);
    if (input.patches.pixels(patch) == input.resized)
      cut_patches(*resized, patch, own);
    else
      cut_patches(cut_tile(*resized, input.patches.pixels(patch).width, input.tile_column, input.tile_row), patch, own);
  }
}

std::int64_t TokenSequence::labels() const {
  if (targets.empty()) return 0;
  return std::count_if(targets.begin() + 1, targets.end(), [](int target) { return target != kIgnoredLabel; });
}

SequenceMaker::SequenceMaker(const DataConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                             const std::optional<VisionInput>& vision, std::int64_t capacity, std::vector<int> refused)
    : config_(config), tokenizer_(std::move(tokenizer)), vision_(vision), capacity_(capacity),
      refused_(std::move(refused)),
      chat_(*tokenizer_, config.prompt_format, config.image_tag == "none" ? "" : config.image_tag,
            vision ? vision->token : kImageToken, time_of_date(config.date).value_or(local_time())) {
  check_format();
  if (!vision_) return;
  const std::optional<int> id = tokenizer_->find(vision_->token);
  if (!id)
    throw ConfigError({fmt::format("the tokenizer {} has no token {}, which marks pictures in the text",
                                   tokenizer_->where(), in_quotes(vision_->token)),
                       "data.tokenizer", "add it to the tokenizer's special tokens"});
  if (*id != vision_->token_id)
    throw ConfigError({fmt::format("the tokenizer {} gives {} the id {}, but the model expects {}", tokenizer_->where(),
                                   in_quotes(vision_->token), *id, vision_->token_id),
                       vision_->token_id_key,
                       *id == 0 ? "give it another id in tokenizer.json: token 0 fills up sequences"
                                : fmt::format("use {}={}", vision_->token_id_key, *id)});
}

void SequenceMaker::check_format() {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError({fmt::format("the chat format {} does not suit the tokenizer {}: {}",
                                   in_quotes(config_.prompt_format), tokenizer_->where(), why),
                       "data.prompt_format",
                       "use the format that the tokenizer was made for, or nemotron6-moe, which uses the tokenizer's "
                       "own chat template"});
  };
  const ChatFormat& format = chat_format(config_.prompt_format);
  std::vector<std::string> markers = markers_of(format);
  const TokenizerSettings& settings = tokenizer_->settings();
  if (format.has_bos) markers.push_back(settings.bos.value_or(""));
  if (format.assistant.after == "{eos}") markers.push_back(settings.eos.value_or(""));
  for (const std::string& marker : markers)
    if (!marker.empty() && tokenizer_->encode(marker).size() != 1)
      refuse(fmt::format("it {} token {}", tokenizer_->find(marker) ? "splits the" : "has no", in_quotes(marker)));
  const auto& source = settings.chat_template;
  if (format.own_template && config_.date.empty() && source && source->find("strftime_now") != source->npos)
    warnings_.push_back("the chat template may write today's date, so the tokens change every day; set data.date");
  if (!config_.system.empty() && !chat_.writes_system({{"system", config_.system}, {"user", "one"}}, {}))
    warnings_.push_back(fmt::format("data.system has no effect: the chat format {} does not write system turns",
                                    in_quotes(config_.prompt_format)));
  // A short conversation, without and with a system turn, which some templates need.
  const std::vector<ChatTurn> asked = {{"user", "one"}, {"assistant", "two"}, {"user", "one"}, {"assistant", "two"}};
  Conversation without_system = {.turns = asked}, with_system = {.turns = asked};
  with_system.turns.insert(with_system.turns.begin(), {"system", "three"});
  try {
    check_ends(tokens_of(without_system));
  } catch (const DataError&) {
    try {
      check_ends(tokens_of(with_system));
    } catch (const DataError& e) {
      refuse(e.what());
    }
  }
}

// A model stops where it writes a stop token, so it must have learned to.
void SequenceMaker::check_ends(const ChatTokens& tokens) {
  const TokenizerSettings& settings = tokenizer_->settings();
  const bool stops = std::any_of(tokens.targets.begin(), tokens.targets.end(),
                                 [&](int id) { return id != kIgnoredLabel && tokenizer_->is_stop(id); });
  if (stops || (!settings.eos && settings.stop_ids.empty())) return;
  std::vector<std::string> names;
  if (settings.eos) names.push_back(*settings.eos);
  for (const int id : settings.stop_ids)
    if (const auto name = tokenizer_->token(id); name && !contains(names, *name)) names.push_back(*name);
  warnings_.push_back(fmt::format(
      "no answer ends in a stop token of the tokenizer ({}), so the model does not learn to stop; let the chat "
      "template "
      "or the format end answers with one, or list what ends them in eos_token_id of generation_config.json",
      fmt::join(names, ", ")));
}

TokenSequence SequenceMaker::encode(Conversation conversation) const {
  const ChatTokens tokens = tokens_of(conversation);
  const auto found = std::find_first_of(tokens.tokens.begin(), tokens.tokens.end(), refused_.begin(), refused_.end());
  if (found != tokens.tokens.end())
    throw DataError(fmt::format("its text has token {}, which stands for input that is not a picture", *found));
  std::vector<std::vector<MediaPlan>> plans;
  if (!conversation.pictures.empty()) {
    if (!vision_) throw DataError("the sample has pictures, but the model has no encoder for them");
    std::vector<PixelSize> sizes;
    for (const SamplePart& picture : conversation.pictures) {
      const ImageHeader header = read_header(picture.file(), picture.name);
      sizes.push_back(config_.pictures.orient ? header.oriented() : header.stored);
    }
    plans = plan_pictures(sizes, capacity_ - std::ssize(tokens.tokens) - kRoomForMarkers, config_.pictures, *vision_);
  }
  return expand(tokens, std::move(plans));
}

std::vector<std::string> SequenceMaker::unused_fields(const Conversation& conversation) const {
  std::vector<std::string> unused = conversation.unused;
  if (!chat_.writes_system(conversation.turns, conversation.tools)) unused.push_back("system turn");
  for (const std::string& key : chat_.unused_keys(conversation.turns, conversation.tools))
    if (!is_metadata_key(key)) unused.push_back("turn." + key);
  return unused;
}

ChatTokens SequenceMaker::tokens_of(Conversation& conversation) const {
  std::vector<ChatTurn>& turns = conversation.turns;
  if (conversation.ids) return {*conversation.ids, *conversation.ids};
  const bool is_plain = turns.front().role.empty();
  if (!config_.system.empty() && !is_plain && turns.front().role != "system")
    turns.insert(turns.begin(), {"system", config_.system});
  if (!is_plain) return chat_.encode_with_targets(turns, conversation.tools);
  if (conversation.tools && !conversation.tools->empty())
    throw DataError("it has tools, but a plain text has no turns");
  return plain_tokens(turns.front().text);
}

SequenceSettings SequenceMaker::settings() const {
  SequenceSettings settings;
  const auto add = [&](const char* name, const auto& value) { settings.emplace_back(name, fmt::format("{}", value)); };
  const auto add_text = [&](const char* name, const std::string& text) { add(name, in_quotes(text)); };
  add("data.sequence_length", capacity_);
  add("data.tokenizer", tokenizer_->fingerprint());
  add_text("data.prompt_format", config_.prompt_format);
  add_text("data.image_tag", config_.image_tag);
  add_text("data.system", config_.system);
  add_text("data.date", config_.date);
  add("data.append_eod", config_.append_eod);
  add_text("data.over_long", name_of(config_.over_long));
  add_text("data.fields.images", config_.fields.images);
  add_text("data.fields.conversation", config_.fields.conversation);
  add_text("data.fields.tools", config_.fields.tools);
  add_text("data.fields.question", config_.fields.question);
  add_text("data.fields.answer", config_.fields.answer);
  add_text("data.fields.caption", config_.fields.caption);
  add_text("data.fields.text", config_.fields.text);
  const PictureConfig& pictures = config_.pictures;
  add_text("data.pictures.fit", name_of(pictures.fit));
  add("data.pictures.min_patches", pictures.min_patches);
  add("data.pictures.max_patches", pictures.max_patches);
  add("data.pictures.min_side", pictures.min_side);
  add("data.pictures.tile_side", pictures.tile_side);
  add("data.pictures.max_tiles", pictures.max_tiles);
  add("data.pictures.thumbnail", pictures.thumbnail);
  add("data.pictures.orient", pictures.orient);
  add("the vision encoder's input",
      vision_
          ? fmt::format("patches of {} pixels, {} per embedding, {}", vision_->patch, vision_->pixel_shuffle ? 4 : 1,
                        vision_->square ? fmt::format("{0} x {0} patches", *vision_->square) : "any size")
          : "none");
  return settings;
}

ChatTokens SequenceMaker::plain_tokens(const std::string& text) const {
  const std::vector<int> ids = encode_plain_text(*tokenizer_, text, config_.append_eod);
  return {ids, ids};
}

// Puts the tokens of a picture's embeddings in the place of its tag's token.
TokenSequence SequenceMaker::expand(const ChatTokens& tokens, std::vector<std::vector<MediaPlan>> plans) const {
  TokenSequence sequence;
  std::size_t picture = 0;
  for (std::size_t i = 0; i < tokens.tokens.size(); ++i) {
    if (!vision_ || tokens.tokens[i] != vision_->token_id) {
      sequence.ids.push_back(tokens.tokens[i]);
      sequence.targets.push_back(tokens.targets[i]);
      continue;
    }
    if (picture == plans.size()) throw DataError("its text has more than " + counted(std::ssize(plans), "picture"));
    for (MediaPlan& media : plans[picture++]) {
      sequence.ids.insert(sequence.ids.end(), static_cast<std::size_t>(media.embeddings), vision_->token_id);
      sequence.targets.resize(sequence.ids.size(), kIgnoredLabel);
      sequence.media.push_back(std::move(media));
    }
  }
  if (picture != plans.size())
    throw DataError(fmt::format("its text has {} of its {}", picture, counted(std::ssize(plans), "picture")));
  return sequence;
}

std::optional<Unfit> SequenceMaker::fit(TokenSequence& sequence) const {
  const bool is_long = std::ssize(sequence.ids) > capacity_;
  if (is_long && config_.over_long == OverLong::Drop) return Unfit::TooLong;
  if (is_long) shorten(sequence);
  if (sequence.labels() == 0) return Unfit::WithoutTargets;
  return is_long ? std::optional(Unfit::Cut) : std::nullopt;
}

// A picture that does not fit whole is cut off with all that follows.
void SequenceMaker::shorten(TokenSequence& sequence) const {
  auto end = static_cast<std::size_t>(capacity_);
  std::size_t at = 0, media = 0;
  for (; media < sequence.media.size(); ++media) {
    at = static_cast<std::size_t>(std::find(sequence.ids.begin() + at, sequence.ids.end(), vision_->token_id) -
                                  sequence.ids.begin());
    const auto size = static_cast<std::size_t>(sequence.media[media].embeddings);
    if (at + size > end) {
      for (; media > 0 && sequence.media[media - 1].picture == sequence.media[media].picture; --media)
        at -= static_cast<std::size_t>(sequence.media[media - 1].embeddings);
      end = std::min(end, at);
      break;
    }
    at += size;
  }
  sequence.ids.resize(end);
  sequence.targets.resize(end);
  sequence.media.resize(media);
}

}  // namespace braid
