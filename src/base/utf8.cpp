#include "base/utf8.h"

#include <cstring>

namespace braid {
namespace {

// How many bytes of this text are ASCII before the first other byte, up to a multiple of eight.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t length = 0;
  for (std::uint64_t word; length + sizeof word <= text.size(); length += sizeof word) {
    std::memcpy(&word, text.data() + length, sizeof word);
    if (word & 0x8080808080808080u) break;
  }
  return length;
}

// The bytes at the start of an invalid text that stand for one broken character: the longest start of a valid one, or a
// single byte.
std::size_t broken_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0xc2 || first > 0xf4) return 1;
  // The second byte has a smaller range after these, which excludes overlong forms, surrogates and too large codes.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  const std::size_t whole = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  std::size_t length = 1;
  for (; length < whole && length < text.size(); ++length) {
    const auto next = static_cast<unsigned char>(text[length]);
    if (length == 1 ? next < least || next > most : (next & 0xc0) != 0x80) break;
  }
  return length;
}

}  // namespace

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

bool is_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    if (!take_character(text)) return false;
  }
}

std::string with_valid_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    std::string_view rest = bytes;
    std::size_t length = ascii_prefix(bytes);
    if (length == 0 && take_character(rest)) length = bytes.size() - rest.size();
    if (length > 0) {
      text += bytes.substr(0, length);
      bytes.remove_prefix(length);
    } else {
      append_utf8(text, 0xfffd);
      bytes.remove_prefix(broken_length(bytes));
    }
  }
  return text;
}

}  // namespace braid
