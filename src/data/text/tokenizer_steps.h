// The steps of a tokenizer.json around its model: what changes a text before it is divided, what divides it into the
// pieces that are tokenized separately, which special tokens stand around it, and what makes text from tokens.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

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

// What a Metaspace writes for a space.
std::string read_replacement(const JsonPlace& metaspace);

}  // namespace braid
