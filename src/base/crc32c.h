// CRC-32C (Castagnoli), as in TFRecord, iSCSI and ext4: of damage up to 32 bits long none goes unnoticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace braid {

// To go on where an earlier call stopped, give its result as `seed`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The same without the processor's instructions, for those that have none.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace braid
