#include "base/utf8.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(Utf8, CharactersAreReadAndWritten) {
  for (const std::uint32_t code :
       {0x24u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, code);
    EXPECT_TRUE(is_utf8(text));
    std::string_view rest = text;
    EXPECT_EQ(take_character(rest), code);
    EXPECT_TRUE(rest.empty());
  }
}

// Expected values: Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, InvalidBytesAreReplacedAsPythonDoes) {
  EXPECT_EQ(with_valid_utf8("plain text, long enough"), "plain text, long enough");
  EXPECT_EQ(with_valid_utf8("a\xff\x80z"), "a\ufffd\ufffdz");
  EXPECT_EQ(with_valid_utf8("\xe2\x82"), "\ufffd");                  // ends too early
  EXPECT_EQ(with_valid_utf8("\xf0\x9f\x98z"), "\ufffdz");            // one for the three bytes
  EXPECT_EQ(with_valid_utf8("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // a surrogate
  EXPECT_EQ(with_valid_utf8("\xc0\xaf\xe0\x80"), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(with_valid_utf8("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(with_valid_utf8("\u00e9\xc3\u00e9"), "\u00e9\ufffd\u00e9");
}

}  // namespace
}  // namespace braid
