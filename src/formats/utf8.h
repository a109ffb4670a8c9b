// The text encodings of pickles.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace braid {

// Nothing if a character is beyond U+00FF or the text is not UTF-8.
std::optional<std::string> utf8_to_latin1(std::string_view text);
std::string latin1_to_utf8(std::string_view bytes);

// Python's raw-unicode-escape: Latin-1, with \uXXXX and \UXXXXXXXX for other characters. Nothing if an escape is
// invalid.
std::optional<std::string> from_raw_unicode_escape(std::string_view text);

}  // namespace braid
