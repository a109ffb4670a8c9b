// CRC-32C (Castagnoli), as in TFRecord, iSCSI and ext4. It detects every burst of damage up to 32 bits long.
#pragma once

namespace braid {

// To continue an earlier call, pass its result as `seed`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The same without the processor's CRC instructions.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace braid
