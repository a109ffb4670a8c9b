// Makes text of any origin safe to print.
#pragma once

#include <string>
#include <string_view>

namespace braid {

// Printable UTF-8: escape sequences, control characters and invalid bytes are removed.
std::string clean_text(std::string_view text);

// The same text, except that control characters (other than newlines and tabs) and invalid bytes are shown as \x1b, and
// each line is cut after `most` bytes.
std::string visible_text(std::string_view text, std::size_t most = 10'000);

// The length of the UTF-8 character at the start of a non-empty text; 0 when it is invalid.
std::size_t utf8_length(std::string_view text);

}  // namespace braid
