// The "added_tokens" of a tokenizer.json, and those that a tokenizer_config.json adds to them: tokens that are found in
// the text before it is split into words.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text/bpe.h"
#include "data/text/json_place.h"
#include "data/text/tokenizer_steps.h"

namespace braid {

struct AddedToken {
  std::string content;
  std::string searched;  // its content, normalised if `normalized`
  int id = 0;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

// Finds the leftmost-longest of many texts.
class TextFinder {
 public:
  explicit TextFinder(const std::vector<std::string_view>& texts);
  struct Found {
    std::size_t begin = 0, end = 0, index = 0;  // index of the text; the last one if two are equal
  };
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  static constexpr std::uint32_t kNone = ~0u;
  PairTable children_;               // node and byte -> child
  std::vector<std::uint32_t> ends_;  // which text ends at a node; kNone
  std::array<bool, 256> begins_{};
};

class AddedTokens {
 public:
  // `config` is the tokenizer_config.json, if there is one. DataError if a token's id is another token's, or not the
  // one that Hugging Face's libraries give it.
  AddedTokens(const JsonPlace& place, const JsonPlace* config, const Vocabulary& vocabulary,
              const Normalizer& normalizer);

  // A part of a text: an added token, or what is between two of them.
  struct Part {
    std::size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  // All parts in order. `normalized` chooses the tokens: those searched in normalised text, or those in the original.
  std::vector<Part> parts_of(std::string_view text, bool normalized) const;

  const std::vector<AddedToken>& list() const { return tokens_; }
  const AddedToken* find(std::string_view content) const;
  const AddedToken* with_id(int id) const;
  int end_id() const { return end_id_; }  // one more than the largest id, of these and the vocabulary

 private:
  // What transformers adds to the tokens of tokenizer.json when it loads a folder.
  void add_config(const JsonPlace& config, const Normalizer& normalizer);
  void add(AddedToken token, const JsonPlace& place);

  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_{};
  std::map<std::string, std::size_t, std::less<>> by_content_{};
  std::unordered_map<int, std::size_t> by_id_{};
  int next_id_;
  int end_id_;
  struct Search {
    TextFinder finder;
    std::vector<std::size_t> tokens;  // the finder's texts as indices of tokens_
  };
  std::vector<Search> searches_{};  // for the original text, for normalised text
};

}  // namespace braid
