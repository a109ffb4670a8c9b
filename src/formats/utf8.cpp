#include "formats/utf8.h"

#include <charconv>
#include <cstdint>

namespace braid {
namespace {

bool is_character(std::uint32_t code) { return code <= 0x10ffff && (code < 0xd800 || code > 0xdfff); }

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  out += static_cast<char>((0xff00 >> (more + 1) & 0xff) | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

// Removes the first character of a non-empty text and returns it; nothing if it is invalid.
std::optional<std::uint32_t> take_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t more = first < 0x80 ? 0 : first < 0xc0 ? 4 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  if (more >= text.size()) return std::nullopt;
  std::uint32_t code = more == 0 ? first : first & (0x3fu >> more);
  for (std::size_t i = 1; i <= more; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (next & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000, 0};
  if (more == 4 || first >= 0xf8 || code < kLeast[more] || !is_character(code)) return std::nullopt;
  text.remove_prefix(more + 1);
  return code;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty())
    if (!take_character(text)) return false;
  return true;
}

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
