// CRC-32C against published values (RFC 3720, B.4), and the two ways to compute it against one another.
#include "base/crc32c.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string counting(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>(i * 7 + i / 256);
  return text;
}

TEST(Crc32c, HasThePublishedValues) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
}

TEST(Crc32c, InstructionsAndTableAgreeAtEveryLengthAndAlignment) {
  const std::string text = counting(200);
  for (std::size_t begin = 0; begin < 9; ++begin)
    for (std::size_t length = 0; begin + length <= text.size(); ++length) {
      const auto bytes = bytes_of(text).subspan(begin, length);
      ASSERT_EQ(crc32c(bytes), crc32c_by_table(bytes)) << begin << " " << length;
    }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const std::string text = counting(100);
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32c(bytes_of(text).subspan(cut), crc32c(bytes_of(text).first(cut))), crc32c(bytes_of(text))) << cut;
}

}  // namespace
}  // namespace braid
