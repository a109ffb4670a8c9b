#pragma once

#include <string>
#include <string_view>

#include "data/text/alphabet.h"

namespace braid {

// A pattern in Oniguruma's syntax, which Hugging Face's tokenizers use, as one for PCRE2 over the kinds of characters
// that it tells apart. It needs no options, and UTF if the alphabet is not ASCII. What cannot be translated is refused
// with a DataError.
struct TranslatedPattern {
  std::string pattern;
  Alphabet alphabet;
};
TranslatedPattern from_oniguruma(std::string_view pattern);

}  // namespace braid
