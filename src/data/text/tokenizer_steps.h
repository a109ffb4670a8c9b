// The steps of a tokenizer.json around its model: what changes a text before it is divided, what divides it into the
// pieces that are tokenized separately, which special tokens stand around it, and what makes text from tokens.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text/bpe.h"
#include "data/text/json_place.h"
#include "data/text/regex.h"

namespace braid {

// Each is read from its part of the file, where null means that nothing happens. DataError for unknown types.

class Normalizer {
 public:
  explicit Normalizer(const JsonPlace& place);

  bool changes_nothing() const { return steps_.empty(); }
  std::string apply(std::string text) const;  // valid UTF-8

 private:
  using Step = std::function<std::string(std::string)>;
  Step step_of(const JsonPlace& place) const;

  std::vector<Step> steps_;
};

// The "added_tokens" of a tokenizer.json, and those that a tokenizer_config.json adds to them: tokens that are found in
// the text before it is split into words.
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

struct Piece {
  std::size_t begin = 0, end = 0;  // in Pieces::text
  bool is_first = false;           // whether it begins where the user's text begins
};

struct Pieces {
  std::string text;
  std::vector<Piece> list;  // none is empty

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const JsonPlace& place);
  void apply(Pieces& pieces) const;

 private:
  void add(const JsonPlace& place);

  std::vector<std::function<void(Pieces&)>> steps_;
};

struct SpecialFrame {
  std::vector<int> before, after;
};
// The "post_processor". DataError for templates that repeat the text.
SpecialFrame read_post_processor(const JsonPlace& place);

class Decoder {
 public:
  // Null: tokens are joined by spaces.
  explicit Decoder(const JsonPlace& place);
  std::string decode(std::vector<std::string> tokens) const;
  std::string bytes(const std::string& token) const;  // of one token, also of part of a character

 private:
  using Tokens = std::vector<std::string>;
  using Step = std::function<Tokens(Tokens)>;
  Step step_of(const JsonPlace& place) const;

  std::vector<Step> steps_;
  std::string separator_;
  bool has_byte_level_ = false;
};

// The bytes that a sentencepiece token stands for: "▁" is a space, "<0x41>" a byte.
std::string bytes_of_piece(const std::string& token);

// Calls visit for each step: the place itself, or the parts of a Sequence, which it has under `parts`.
void for_each_step(const JsonPlace& place, const char* parts, const std::function<void(const JsonPlace&)>& visit);

// {"Regex": "..."} or {"String": "..."}.
Regex read_pattern(const JsonPlace& place);
// The text with every match replaced.
std::string with_replacements(const Regex& pattern, const std::string& text, const std::string& replacement);

// What a Metaspace writes for a space, and which texts it begins with one: "always", "first" or "never".
std::string read_replacement(const JsonPlace& metaspace);
std::string read_prepend_scheme(const JsonPlace& metaspace);

}  // namespace braid
