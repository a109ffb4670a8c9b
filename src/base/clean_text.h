// Text from anywhere, made safe to print.
#pragma once

#include <string>
#include <string_view>

namespace braid {

// Printable, and UTF-8: without escape sequences, control characters and broken bytes.
std::string clean_text(std::string_view text);

// The same as it is, but for what a terminal would obey or could not show: control characters (but for line ends and
// tabs) and broken bytes as \x1b, and each line cut behind `most` bytes.
std::string visible_text(std::string_view text, std::size_t most = 10'000);

// The length of the UTF-8 character at the beginning of a text that is not empty, 0 when it is broken.
std::size_t utf8_length(std::string_view text);

}  // namespace braid
