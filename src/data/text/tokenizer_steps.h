// The parts of a tokenizer.json: what changes a text before it is divided, what divides it into the pieces that are
// tokenized separately, which special tokens stand around the text, and what makes text from tokens. Each is
// read from its part of the file, where null means that nothing happens. DataError for unknown types.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/tokenizer.h"

namespace braid {

struct Piece {
  std::size_t begin = 0, end = 0;  // in Pieces::text
  bool is_first = false;           // whether it begins where the user's text begins
};

struct Pieces {
  std::string text;         // valid UTF-8
  std::vector<Piece> list;  // none is empty

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

template <class Value>
using Steps = std::vector<std::function<void(Value&)>>;

template <class Value>
void apply(const Steps<Value>& steps, Value& value) {
  for (const auto& step : steps) step(value);
}

Steps<std::string> read_normalizer(const JsonPlace& place);
Steps<Pieces> read_pre_tokenizer(const JsonPlace& place);

struct SpecialFrame {
  std::vector<int> before, after;
};
// The "post_processor". DataError for templates that repeat the text.
SpecialFrame read_post_processor(const JsonPlace& place);

struct Decoder {
  Steps<std::vector<std::string>> steps;
  std::string separator;
  bool has_byte_level = false;

  std::string decode(std::vector<std::string> tokens) const;
  std::string bytes(const std::string& token) const;  // of one token, also of part of a character
};
// Null: tokens are joined by spaces.
Decoder read_decoder(const JsonPlace& place);

// The bytes that a sentencepiece token stands for: "▁" is a space, "<0x41>" a byte.
std::string bytes_of_piece(const std::string& token);

}  // namespace braid
