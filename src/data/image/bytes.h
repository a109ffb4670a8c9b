// Numbers in untrusted bytes: reading past the end is a DataError.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/error.h"

namespace braid {

using Bytes = std::span<const std::uint8_t>;

inline Bytes slice(Bytes bytes, std::size_t offset, std::size_t count) {
  if (offset > bytes.size() || count > bytes.size() - offset)
    throw DataError(fmt::format("the file ends early, after {} bytes", bytes.size()));
  return bytes.subspan(offset, count);
}

inline std::uint32_t big_endian(Bytes bytes, std::size_t offset, std::size_t count) {
  std::uint32_t value = 0;
  for (const std::uint8_t byte : slice(bytes, offset, count)) value = value << 8 | byte;
  return value;
}

inline std::uint32_t little_endian(Bytes bytes, std::size_t offset, std::size_t count) {
  const Bytes part = slice(bytes, offset, count);
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | part[i];
  return value;
}

inline bool has_text(Bytes bytes, std::size_t offset, std::string_view text) {
  return offset <= bytes.size() && text.size() <= bytes.size() - offset &&
         std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

}  // namespace braid
