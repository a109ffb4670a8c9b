#include "data/text/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace braid {
namespace {

using Characters = std::array<std::uint32_t, 256>;

constexpr Characters kCharacters = [] {
  Characters characters{};
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}();

// The byte of each character below U+0144; -1: none.
constexpr std::array<int, 0x144> kBytes = [] {
  std::array<int, 0x144> bytes{};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}();

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) {
    const std::uint32_t code = kCharacters[static_cast<unsigned char>(byte)];
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else {
      out += static_cast<char>(0xc0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
}

bool append_byte_level_bytes(std::string& out, std::string_view text) {
  const std::size_t before = out.size();
  while (!text.empty()) {
    const auto code = take_character(text);
    if (!code || *code >= kBytes.size() || kBytes[*code] < 0) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(kBytes[*code]);
  }
  return true;
}

}  // namespace braid
