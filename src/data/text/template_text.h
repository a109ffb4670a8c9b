// Python's methods of str, for chat templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

std::vector<std::string> characters_of(std::string_view text);
std::size_t character_count(std::string_view text);

// str.strip(characters); without characters: white space.
std::string strip_text(std::string_view text, const std::string* characters, bool left, bool right);

// The result has as many bytes. DataError for upper case beyond ASCII, and for the few other letters that cannot be
// changed in their place.
std::string upper_text(std::string text);
std::string lower_text(std::string_view text);
std::string title_text(std::string_view text);
std::string capitalize_text(std::string_view text);

std::string replace_text(std::string_view text, std::string_view old, std::string_view with, std::int64_t most);
// str.split(separator, most); without separator: at white space. A negative `most` means all.
std::vector<std::string> split_text(std::string_view text, const std::string* separator, std::int64_t most);
std::vector<std::string> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most);
std::vector<std::string> lines_of(std::string_view text);

}  // namespace braid
