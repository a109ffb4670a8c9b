// A sample as the language model sees it: tokens, which of them it predicts, and where embeddings of pictures go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/samples/conversation.h"
#include "data/samples/data_config.h"
#include "data/samples/picture_plan.h"
#include "data/text/chat.h"
#include "data/text/tokenizer.h"

namespace braid {

// Names, which are recipe keys where there is one, and values.
using SequenceSettings = std::vector<std::pair<std::string, std::string>>;

struct TokenSequence {
  std::vector<int> ids{};          // a picture's token repeated for each of its embeddings
  std::vector<int> targets{};      // the ids that are predicted; kIgnoredTarget elsewhere
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
