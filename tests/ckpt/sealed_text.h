// Texts of checksums that say what they should not, with their own checksum right.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "base/crc32c.h"

namespace braid::testing {

// All but the end, which is the checksum.
inline std::string sealed(std::string_view start) {
  return fmt::format("{},\"crc32c\":\"{:08x}\"}}\n", start, crc32c(std::as_bytes(std::span(start))));
}

}  // namespace braid::testing
