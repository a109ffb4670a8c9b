// The "post_processor" of a tokenizer.json: which special tokens stand before and after a text.
#pragma once

#include <vector>

#include "data/text/json_place.h"

namespace braid {

struct SpecialFrame {
  std::vector<int> before, after;
};

// Null: none. DataError for unknown types and templates that repeat the text.
SpecialFrame read_post_processor(const JsonPlace& place);

}  // namespace braid
