// Which tokens a range of a text became.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "data/text/tokenizer.h"

namespace braid {

class TokenMap {
 public:
  // Both are kept.
  TokenMap(const Tokenizer& tokenizer, std::string text);

  const std::vector<int>& tokens() const { return tokens_; }
  std::size_t ended(std::size_t byte) const;  // how many tokens end at or before this place of the text
  std::size_t begun(std::size_t byte) const;  // how many tokens begin before it

 private:
  const Tokenizer& tokenizer_;
  const std::string text_;
  const std::vector<int> tokens_;
  // Where each token ends in the text. Nothing if a normaliser changed the text: then the tokens of the text before a
  // place, or after it, are compared with those of the whole.
  const std::optional<std::vector<std::size_t>> ends_;
};

}  // namespace braid
