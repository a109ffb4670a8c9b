#include "base/crc32c.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace braid {
namespace {

// Assembler, because compilers offer the instruction only in code built for processors that all have it.
#if defined(__aarch64__) && defined(__linux__)
#define BRAID_CRC32C_INSTRUCTION
bool has_instruction() { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
void add_word(std::uint32_t& crc, std::uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
}
#elif defined(__x86_64__)
#define BRAID_CRC32C_INSTRUCTION
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
void add_word(std::uint32_t& crc, std::uint64_t word) {
  std::uint64_t wide = crc;
  asm("crc32q %1, %0" : "+r"(wide) : "r"(word));
  crc = static_cast<std::uint32_t>(wide);
}
#endif

std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t seed) {
  static const std::array<std::uint32_t, 256> table = make_table();
  std::uint32_t crc = ~seed;
  for (const std::byte byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
#ifdef BRAID_CRC32C_INSTRUCTION
  static const bool fast = has_instruction();
  if (fast) {
    std::uint32_t crc = ~seed;
    for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), sizeof(word));
      add_word(crc, word);
    }
    seed = ~crc;
  }
#endif
  return crc32c_by_table(bytes, seed);
}

}  // namespace braid
