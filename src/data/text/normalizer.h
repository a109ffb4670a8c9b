// The "normalizer" of a tokenizer.json: what changes a text before it is split.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/text/json_place.h"

namespace braid {

class Normalizer {
 public:
  // Null: changes nothing. DataError for unknown types.
  explicit Normalizer(const JsonPlace& place);

  bool changes_nothing() const { return steps_.empty(); }
  std::string apply(std::string text) const;  // valid UTF-8

 private:
  using Step = std::function<std::string(std::string)>;
  void add(const JsonPlace& place);
  Step step_of(const JsonPlace& place) const;

  std::vector<Step> steps_;
};

}  // namespace braid
