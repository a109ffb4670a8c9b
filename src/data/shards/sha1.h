// SHA-1, which Energon uses to spread seeds. It is no protection against tampering.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace braid {

std::array<std::uint8_t, 20> sha1(std::string_view text);
std::uint64_t sha1_number(std::string_view text);  // the first eight bytes, the highest first

}  // namespace braid
