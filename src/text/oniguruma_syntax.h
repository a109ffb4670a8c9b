#pragma once

#include <string>
#include <string_view>

namespace braid {

// A pattern in Oniguruma's syntax, which Hugging Face's tokenizers use, as one for PCRE2 with UTF, UCP and MULTILINE.
// Character classes that differ are written out; what cannot be translated is refused with a DataError.
std::string from_oniguruma(std::string_view pattern);

}  // namespace braid
