#include "formats/utf8.h"

#include <charconv>
#include <cstdint>
#include <system_error>

#include "base/utf8.h"

namespace braid {

std::optional<std::string> utf8_to_latin1(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::optional<std::uint32_t> code = take_character(text);
    if (!code || *code > 0xff) return std::nullopt;
    bytes += static_cast<char>(*code);
  }
  return bytes;
}

std::string latin1_to_utf8(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(text, static_cast<unsigned char>(c));
  return text;
}

std::optional<std::string> from_raw_unicode_escape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t digits = !text.substr(i).starts_with('\\')     ? 0
                               : text.substr(i + 1).starts_with('u') ? 4
                               : text.substr(i + 1).starts_with('U') ? 8
                                                                     : 0;
    if (digits == 0) {
      append_utf8(out, static_cast<unsigned char>(text[i++]));
      continue;
    }
    const std::string_view hex = text.substr(i + 2, digits);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (hex.size() != digits || error != std::errc() || end != hex.data() + hex.size() || !is_character(code))
      return std::nullopt;
    append_utf8(out, code);
    i += 2 + digits;
  }
  return out;
}

}  // namespace braid
