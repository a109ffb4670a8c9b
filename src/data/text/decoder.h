// The "decoder" of a tokenizer.json: makes text from tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/text/json_place.h"

namespace braid {

// The bytes that a sentencepiece token stands for: "▁" is a space, "<0x41>" a byte.
std::string bytes_of_piece(const std::string& token);

class Decoder {
 public:
  // Null: tokens are joined by spaces. DataError for unknown types.
  explicit Decoder(const JsonPlace& place);
  std::string decode(std::vector<std::string> tokens) const;
  std::string bytes(const std::string& token) const;  // of one token, also of part of a character

 private:
  using Tokens = std::vector<std::string>;
  using Step = std::function<Tokens(Tokens)>;
  void add(const JsonPlace& place);
  Step step_of(const JsonPlace& place) const;

  std::vector<Step> steps_;
  std::string separator_;
  bool has_byte_level_ = false;
};

}  // namespace braid
