// A stored sample as turns of a conversation and pictures; as the language model sees it: tokens, which of them it
// predicts, and where embeddings of pictures go; and as an encoder sees it: decoded pictures, resized and cut into
// patches. How large pictures become and how they are cut follows from their sizes alone, without pixels.
//
// Typed data sets (dataset.yaml with sample_type and field_map) are read by their type. Others are read by the recipe's
// `data.fields` or, without those, by the usual names in a part `json`: conversations, question and answer, caption,
// text.
#pragma once

#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/samples/data_config.h"
#include "data/shards/data_set.h"
#include "data/shards/shard.h"
#include "data/text/chat.h"
#include "data/text/tokenizer.h"

namespace braid {

inline constexpr std::string_view kPictureTag = "<image>";  // marks the place of a picture in a text

struct Conversation {
  std::vector<ChatTurn> turns{};
  std::vector<SamplePart> pictures{};     // in the order of their tags
  TemplateInput tools{};                  // a list of what the assistant may call
  std::optional<std::vector<int>> ids{};  // the tokens of a text that is stored as such; its turn is then empty
  std::vector<std::string> unused{};      // names of the sample's keys and parts that nothing here reads
};

// The fields that the recipe maps, by key.
std::vector<std::pair<const char*, std::string>> mapped_fields(const SampleFields& fields);

// Data sets of a blend whose samples cannot be read, as problems: they need Python, or have an unknown type, or the
// recipe maps no text or several.
std::vector<Problem> unreadable_leaves(const Blend& blend, const SampleFields& fields);

// For each data set of a blend, the name and value of how it maps parts to fields: see LaneIdentity.
std::vector<std::pair<std::string, std::string>> mappings_of(const Blend& blend, const SampleFields& fields);

// Identifies or describes a sample or a turn; a conversation is the same without it.
bool is_metadata_key(std::string_view key);

// DataError, without the sample's name, if the sample lacks a field, or if texts and pictures do not match.
Conversation read_conversation(const Sample& sample, const SampleSpec& spec, const SampleFields& fields);

// An encoder's name, and the token that its embeddings replace.
struct MediaToken {
  std::string encoder;
  int id;
};

// What the encoder of pictures expects.
struct VisionInput {
  std::string encoder{};        // its name
  int patch = 16;               // pixels per side
  bool pixel_shuffle = true;    // 2 x 2 patches become one embedding
  std::optional<int> square{};  // patches per side, for encoders with one size
  std::string token{};          // that marks embeddings in the text
  int token_id = 0;
  std::string token_id_key{};  // the recipe key that sets it, for messages
};

// One input of the encoder: a picture, or a tile of it.
struct MediaPlan {
  std::size_t picture = 0;  // in Conversation::pictures
  PixelSize resized{};      // of the whole picture
  int tile_column = 0, tile_row = 0;
  CellGrid patches{};  // of this input
  std::int64_t embeddings = 0;
};

inline std::int64_t patches_of(std::span<const MediaPlan> inputs) {
  return sum_of<std::int64_t>(inputs, [](const MediaPlan& input) { return input.patches.cells(); });
}
inline std::int64_t embeddings_of(std::span<const MediaPlan> inputs) {
  return sum_of<std::int64_t>(inputs, &MediaPlan::embeddings);
}
// The inputs in groups, of those that come from one picture.
std::vector<std::span<const MediaPlan>> by_picture(std::span<const MediaPlan> inputs);

// The inputs of each picture. `room`: embeddings that fit into the sequence; more may result if even the smallest sizes
// do not fit.
std::vector<std::vector<MediaPlan>> plan_pictures(const std::vector<PixelSize>& pictures, std::int64_t room,
                                                  const PictureConfig& config, const VisionInput& vision);

// The picture at the size at which its inputs are made from it. DataError if it is damaged.
Image decode_for(const SamplePart& picture, std::span<const MediaPlan> inputs, const PictureConfig& config);

// Writes the patches of all inputs that one picture becomes, one input after the other, into `rows`, [patches,
// 3 * patch * patch].
void write_patches(const Image& decoded, std::span<const MediaPlan> inputs, const PictureConfig& config, int patch,
                   std::span<std::uint8_t> rows);

// Names, which are recipe keys where there is one, and values.
using SequenceSettings = std::vector<std::pair<std::string, std::string>>;

struct TokenSequence {
  std::vector<int> ids{};          // a picture's token repeated for each of its embeddings
  std::vector<int> targets{};      // the ids that are predicted; kIgnoredLabel elsewhere
  std::vector<MediaPlan> media{};  // in the order of their tokens

  std::int64_t labels() const;  // how many tokens are predicted; the first one never is
};

// Why a sample that is not damaged is left out, or (Cut) not used as a whole.
enum class Unfit { TooLong, Cut, WithoutTargets };
inline bool is_usable(std::optional<Unfit> unfit) { return !unfit || *unfit == Unfit::Cut; }

class SequenceMaker {
 public:
  // `capacity`: tokens of a sequence. Without `vision`, samples with pictures are refused; so are samples with any of
  // `refused` tokens. ConfigError if the tokenizer does not fit the model or the chat format. All arguments are
  // copied or shared.
  SequenceMaker(const DataConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                const std::optional<VisionInput>& vision, std::int64_t capacity, std::vector<int> refused = {});

  // All tokens of a sample, however many. DataError for a bad one.
  TokenSequence encode(Conversation conversation) const;
  // Names of what the sample has but its tokens do not depend on; "turn.x" is a key of a turn.
  std::vector<std::string> unused_fields(const Conversation& conversation) const;
  // Why the sequence cannot be trained on as a whole, if so. Shortens a long one if the recipe asks for it.
  std::optional<Unfit> fit(TokenSequence& sequence) const;

  // What a person should know before a run: answers that do not end in a stop token, a date that changes.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // All that decide what the functions above return; those that change pixels only are not among them.
  SequenceSettings settings() const;

  std::int64_t capacity() const { return capacity_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  void check_format();
  void check_ends(const ChatTokens& tokens);
  ChatTokens tokens_of(Conversation& conversation) const;
  ChatTokens plain_tokens(const std::string& text) const;
  TokenSequence expand(const ChatTokens& tokens, std::vector<std::vector<MediaPlan>> plans) const;
  void shorten(TokenSequence& sequence) const;

  const DataConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::optional<VisionInput> vision_;
  const std::int64_t capacity_;
  const std::vector<int> refused_;
  const ChatEncoder chat_;
  std::vector<std::string> warnings_{};
};

}  // namespace braid
