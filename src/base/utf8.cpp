#include "base/utf8.h"

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

namespace {

// Whether a valid character other than a tab controls terminals. U+0080 to U+009F do, too.
bool is_control(std::string_view letter) {
  const auto first = static_cast<unsigned char>(letter[0]);
  return (first < 0x20 && first != '\t') || first == 0x7f ||
         (first == 0xc2 && static_cast<unsigned char>(letter[1]) < 0xa0);
}

// Returns the index just after the escape sequence that begins at `at`: colours, cursor movements, window titles,
// links.
std::size_t behind_escape(std::string_view text, std::size_t at) {
  const char kind = text.substr(at + 1).starts_with('[') ? '[' : text.substr(at + 1).starts_with(']') ? ']' : ' ';
  for (std::size_t i = at + 2; kind != ' ' && i < text.size(); ++i) {
    if (kind == '[' ? text[i] >= 0x40 && text[i] <= 0x7e : text[i] == '\a') return i + 1;
    if (kind == ']' && text.substr(i).starts_with("\x1b\\")) return i + 2;
  }
  return kind == ' ' ? at + 2 : text.size();
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  std::string_view rest = text;
  return take_character(rest) ? text.size() - rest.size() : 0;
}

std::string clean_text(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '\x1b') {
      i = behind_escape(text, i);
      continue;
    }
    const std::size_t length = utf8_length(text.substr(i)), step = std::max<std::size_t>(length, 1);
    if (length == 0) clean += "\xef\xbf\xbd";
    if (length > 0 && !is_control(text.substr(i, step))) clean += text.substr(i, step);
    i += step;
  }
  return clean;
}

std::string visible_text(std::string_view text, std::size_t most) {
  std::string visible;
  std::size_t line = 0, cut = 0;
  const auto end_line = [&] {
    if (cut > 0) visible += fmt::format("... ({} more byte{})", cut, cut == 1 ? "" : "s");
    line = cut = 0;
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i)), step = std::max<std::size_t>(length, 1);
    if (text[i] == '\n') {
      end_line();
      visible += '\n';
    } else if (line >= most) {
      cut += step;
    } else {
      const std::string_view letter = text.substr(i, step);
      line += step;
      if (length > 0 && !is_control(letter))
        visible += letter;
      else
        for (const char byte : letter) visible += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    i += step;
  }
  end_line();
  return visible;
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
