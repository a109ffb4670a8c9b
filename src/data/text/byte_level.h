// GPT-2's alphabet: each byte is a printable character, itself or, for the 68 that are spaces, controls or unassigned,
// one from U+0100 on.
#pragma once

#include <string>
#include <string_view>

namespace braid {

void append_byte_level(std::string& out, std::string_view bytes);

// Appends the bytes that a text of these characters means; false, and nothing appended, if it has other characters.
bool append_byte_level_bytes(std::string& out, std::string_view text);

}  // namespace braid
