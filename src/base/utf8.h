// UTF-8 text: its characters, and text of any origin made valid or safe to print.
#pragma once

namespace braid {

bool is_utf8(std::string_view text);

// U+0000 to U+10FFFF without the surrogates.
bool is_character(std::uint32_t code);
void append_utf8(std::string& out, std::uint32_t code);

// Removes the first character of a non-empty text and returns it; nothing, and the text unchanged, if it is invalid.
std::optional<std::uint32_t> take_character(std::string_view& text);
// The length in bytes of that character; 0 if it is invalid.
std::size_t utf8_length(std::string_view text);

// Valid UTF-8: each invalid byte, and each character that ends too early, becomes one U+FFFD, as in Python and Rust.
std::string with_valid_utf8(std::string_view bytes);

// Printable UTF-8: escape sequences, control characters and invalid bytes are removed.
std::string clean_text(std::string_view text);

// The same text, except that control characters (other than newlines and tabs) and invalid bytes are shown as \x1b, and
// each line is cut after `most` bytes.
std::string visible_text(std::string_view text, std::size_t most = 10'000);

// Nothing if a character is beyond U+00FF or the text is not UTF-8.
std::optional<std::string> utf8_to_latin1(std::string_view text);
std::string latin1_to_utf8(std::string_view bytes);

// Python's raw-unicode-escape: Latin-1, with \uXXXX and \UXXXXXXXX for other characters. Nothing if an escape is
// invalid.
std::optional<std::string> from_raw_unicode_escape(std::string_view text);

}  // namespace braid
