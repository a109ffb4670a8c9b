// Invalid texts of checksums whose own checksum is correct.
#pragma once

#include "base/crc32c.h"

namespace braid::testing {

// `start` is everything before the text's own checksum.
inline std::string sealed(std::string_view start) {
  return fmt::format("{},\"crc32c\":\"{:08x}\"}}\n", start, crc32c(std::as_bytes(std::span(start))));
}

}  // namespace braid::testing
