// The "pre_tokenizer" of a tokenizer.json: divides a text into the pieces that are tokenized separately.
#pragma once

#include <memory>
#include <vector>

#include "data/text/json_place.h"
#include "data/text/pieces.h"

namespace braid {

// One step; Sequence becomes several.
class PieceStep {
 public:
  virtual ~PieceStep() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

class PreTokenizer {
 public:
  // Null: the text stays whole. DataError for unknown types.
  explicit PreTokenizer(const JsonPlace& place);
  void apply(Pieces& pieces) const;

 private:
  void add(const JsonPlace& place);
  std::vector<std::unique_ptr<PieceStep>> steps_;
};

}  // namespace braid
