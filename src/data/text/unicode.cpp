#include "data/text/unicode.h"

#include "base/utf8.h"
#include "data/text/unicode_tables.h"

namespace braid {

// The characters with the property White_Space, which has been the same since Unicode 6.3.
bool is_white_space(std::uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_word_character(std::uint32_t code) {
  static const CodeSet words = *unicode_set("@rustword");
  return words.contains(code);
}

void append_lowercase(std::string& out, std::uint32_t code) {
  if (code == 0x130)  // the only character whose lower case is two characters
    out += "i\u0307";
  else
    append_utf8(out, lower_case(code));
}

}  // namespace braid
