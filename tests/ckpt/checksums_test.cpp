// Checksums of files: independent of how the bytes arrive; their text detects every change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/crc32c.h"
#include "ckpt/checkpoint_files.h"
#include "ckpt/sealed_text.h"
#include "support/errors.h"

namespace braid {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::sealed;
using ::testing::SizeIs;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string counting(std::int64_t count) {
  std::string text(static_cast<std::size_t>(count), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 11 + i / 256);
  return text;
}

std::string parse_error(const std::string& text) {
  return error_of<DataError>([&] { parse_checksums(text, "checksums.json"); });
}

TEST(Checksums, AreThoseOfBlocks) {
  const std::string text = counting(2 * kChecksumBlock + 5);
  const FileChecksums sums = checksums_of(text);
  EXPECT_EQ(sums.size, 2 * kChecksumBlock + 5);
  ASSERT_THAT(sums.blocks, SizeIs(3));
  EXPECT_EQ(sums.blocks[1], crc32c(bytes_of(text).subspan(kChecksumBlock, kChecksumBlock)));
  EXPECT_EQ(sums.blocks[2], crc32c(bytes_of(text).last(5)));
  EXPECT_THAT(checksums_of("").blocks, IsEmpty());
  EXPECT_THAT(checksums_of(counting(kChecksumBlock)).blocks, SizeIs(1));
}

TEST(Checksums, AreTheSameInWhateverPartsTheBytesCome) {
  const std::string text = counting(2 * kChecksumBlock + 77);
  for (const std::size_t step : {std::size_t{1000}, std::size_t{kChecksumBlock - 1}, std::size_t{kChecksumBlock}}) {
    ChecksumStream stream;
    for (std::size_t i = 0; i < text.size(); i += step) stream.add(bytes_of(std::string_view(text).substr(i, step)));
    EXPECT_EQ(stream.finish(), checksums_of(text)) << step;
  }
}

TEST(Checksums, ComeBackFromTheirText) {
  const Checksums checksums = {{"__0_0.distcp", checksums_of(counting(3 * kChecksumBlock + 1))},
                               {"common.pt", checksums_of("abc")},
                               {"empty \"file\"", checksums_of("")}};
  EXPECT_EQ(parse_checksums(to_text(checksums), "checksums.json"), checksums);
  EXPECT_THAT(parse_checksums(to_text({}), "checksums.json"), IsEmpty());
}

TEST(Checksums, NoticeEveryChangedByteOfTheirText) {
  const std::string text = to_text({{"a", checksums_of("abc")}});
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_THAT(parse_error(changed), HasSubstr("checksums.json")) << i;
    EXPECT_THAT(parse_error(text.substr(0, i)), HasSubstr("its own checksum differs")) << i;
  }
}

TEST(Checksums, RefuseATextThatSaysSomethingElse) {
  const std::string blocks = "{\"block_bytes\":1048576,\"files\":";
  EXPECT_THAT(parse_error(sealed("{\"block_bytes\":512,\"files\":{}")), HasSubstr("not checksums of blocks"));
  EXPECT_THAT(parse_error(sealed("[[[[")), HasSubstr("not checksums of blocks"));
  EXPECT_THAT(parse_error(sealed(std::string(1'000'000, '['))), HasSubstr("nested more than"));
  EXPECT_THAT(parse_error(sealed(blocks + "[]")), HasSubstr("not checksums of blocks"));
  EXPECT_THAT(parse_error(sealed(blocks + "{\"a\":3}")), HasSubstr("the entry of 'a' lacks its size or blocks"));
  EXPECT_THAT(parse_error(sealed(blocks + "{\"a\":{\"size\":3,\"blocks\":\"\"}}")),
              HasSubstr("0 checksums do not match the 3 bytes of 'a'"));
  EXPECT_THAT(parse_error(sealed(blocks + "{\"a\":{\"size\":-1,\"blocks\":\"\"}}")), HasSubstr("do not match"));
  EXPECT_THAT(parse_error(sealed(blocks + "{\"a\":{\"size\":9223372036854775807,\"blocks\":\"\"}}")),
              HasSubstr("do not match"));
  EXPECT_THAT(parse_error(sealed(blocks + "{\"a\":{\"size\":3,\"blocks\":\"0123456x\"}}")),
              HasSubstr("not hexadecimal"));
  EXPECT_THAT(parse_error(sealed(blocks + "{\"a\":{\"size\":3,\"blocks\":\"012345678\"}}")),
              HasSubstr("not hexadecimal"));
}

TEST(Checksums, AreOnlyOfFilesInTheFolder) {
  for (const std::string name : {"", ".", "..", "../common.pt", "/etc/passwd", "a/b", "nul\\u0000"})
    EXPECT_THAT(
        parse_error(sealed("{\"block_bytes\":1048576,\"files\":{\"" + name + "\":{\"size\":0,\"blocks\":\"\"}}")),
        HasSubstr("not the name of a file in this folder"))
        << name;
  EXPECT_THAT(parse_error(to_text({{std::string(256, 'a'), checksums_of("")}})), HasSubstr("not the name of a file"));
  EXPECT_THAT(parse_checksums(to_text({{std::string(255, 'a'), checksums_of("")}}), "checksums.json"), SizeIs(1));
}

}  // namespace
}  // namespace braid
