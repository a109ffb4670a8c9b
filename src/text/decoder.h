// The "decoder" of a tokenizer.json: makes text from tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/json_place.h"

namespace braid {

class Decoder {
 public:
  // Null: tokens are joined by spaces. DataError for unknown types.
  explicit Decoder(const JsonPlace& place);
  std::string decode(std::vector<std::string> tokens) const;

 private:
  using Tokens = std::vector<std::string>;
  using Step = std::function<Tokens(Tokens)>;
  void add(const JsonPlace& place);
  Step step_of(const JsonPlace& place) const;

  std::vector<Step> steps_;
  std::string separator_;
};

}  // namespace braid
