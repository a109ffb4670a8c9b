#include "text/unicode.h"

namespace braid {

// The characters with the property White_Space, which has been the same since Unicode 6.3.
bool is_white_space(std::uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

}  // namespace braid
