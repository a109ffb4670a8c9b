// Tar archives, built here byte by byte: what is in them, and that damage is reported and never believed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/shards/shard.h"
#include "data/shards/tar_files.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::padded;
using testing::tar_end;
using testing::tar_member;
using testing::with_checksum;

// "name=content" of each regular file.
std::vector<std::string> contents(std::string_view archive) {
  std::vector<std::string> found;
  TarReader tar(tar_bytes(archive), "a.tar");
  while (const auto member = tar.next())
    if (member->is_regular)
      found.push_back(fmt::format("{}={}", member->name, archive.substr(member->content_offset, member->content_size)));
  return found;
}

std::string pax_record(const std::string& key, const std::string& value) {
  const std::size_t rest = key.size() + value.size() + 3;  // a space, an equals sign, a newline
  const std::size_t digits = std::to_string(rest + std::to_string(rest).size()).size();
  return fmt::format("{} {}={}\n", rest + digits, key, value);
}

TEST(Tar, ReadsRegularFiles) {
  const std::string archive =
      tar_member("d/", "", '5') + tar_member("d/a.txt", "one") + tar_member("b.bin", std::string(512, 'x')) + tar_end();
  EXPECT_THAT(contents(archive), ElementsAre("d/a.txt=one", "b.bin=" + std::string(512, 'x')));
}

// A link has no content, so its sample would silently lack a part.
TEST(Tar, LinksAreRefused) {
  for (const char type : {'1', '2'})
    EXPECT_THAT(error_of<DataError>([&] { contents(tar_member("l", "", type) + tar_end()); }),
                HasSubstr("'a.tar' has a link, 'l'"));
}

TEST(Tar, SizesOfFoldersAreIgnored) {
  std::string folder = tar_member("d", "", '5');
  folder.replace(124, 11, "00000010000");
  EXPECT_THAT(contents(with_checksum(folder) + tar_member("a.txt", "one") + tar_end()), ElementsAre("a.txt=one"));
}

TEST(Tar, ReadsLongNames) {
  const std::string name = std::string(300, 'n') + ".txt";
  EXPECT_THAT(contents(tar_member("././@LongLink", name + '\0', 'L') + tar_member("short", "one") + tar_end()),
              ElementsAre(name + "=one"));
  EXPECT_THAT(contents(tar_member("pax", pax_record("mtime", "1.5") + pax_record("path", name), 'x') +
                       tar_member("short", "one") + tar_end()),
              ElementsAre(name + "=one"));
  std::string prefixed = tar_member("a.txt", "one");
  prefixed.replace(345, 5, "p/q/r");
  EXPECT_THAT(contents(with_checksum(prefixed.substr(0, 512)) + prefixed.substr(512)), ElementsAre("p/q/r/a.txt=one"));
}

TEST(Tar, ReadsLargeSizes) {
  std::string base256 = tar_member("a.txt", "abc");
  base256.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12));
  EXPECT_THAT(contents(with_checksum(base256.substr(0, 512)) + padded("abc")), ElementsAre("a.txt=abc"));
  std::string pax = tar_member("pax", pax_record("size", "3"), 'x');
  std::string zero = tar_member("a.txt", "");
  EXPECT_THAT(contents(pax + zero + padded("abc") + tar_member("b.txt", "d") + tar_end()),
              ElementsAre("a.txt=abc", "b.txt=d"));
}

TEST(Tar, AMembersOffsetIsThatOfItsFirstHeader) {
  const std::string archive =
      tar_member("a.txt", "one") + tar_member("L", std::string(200, 'n') + '\0', 'L') + tar_member("b", "") + tar_end();
  TarReader tar(tar_bytes(archive), "a.tar");
  EXPECT_EQ(tar.next()->offset, 0u);
  const auto second = tar.next();
  EXPECT_EQ(second->offset, 1024u);
  EXPECT_EQ(second->content_offset, 1024u + 3 * 512);
  EXPECT_FALSE(tar.next());
  EXPECT_EQ(tar.offset(), archive.size() - 1024);
}

TEST(Tar, RefusesWhatItCannotRead) {
  const auto error = [](const std::string& archive) { return error_of<DataError>([&] { contents(archive); }); };
  EXPECT_THAT(error(""), HasSubstr("'a.tar' is damaged at byte 0: the file is empty"));
  EXPECT_THAT(error(std::string(512, 'x')), HasSubstr("wrong checksum"));
  EXPECT_EQ(error(tar_member("a", "one").substr(0, 1000)), "no error");  // some writers leave out the last padding
  EXPECT_THAT(error(tar_member("a", "one").substr(0, 514)), HasSubstr("beyond the end"));
  EXPECT_THAT(error(tar_member("s", "", 'S')), HasSubstr("sparse"));
  EXPECT_THAT(error(tar_member("x", "9999 path=a\n", 'x') + tar_member("a", "")), HasSubstr("invalid length"));
  EXPECT_THAT(error(tar_member("x", pax_record("size", "-1"), 'x') + tar_member("a", "")), HasSubstr("invalid size"));
  EXPECT_THAT(error(tar_member("x", pax_record("size", "99999999999"), 'x') + tar_member("a", "")),
              HasSubstr("beyond the end"));
  EXPECT_THAT(error(tar_member("g", pax_record("path", "a"), 'g')), HasSubstr("global"));
  EXPECT_THAT(error(tar_member("L", "n", 'L') + tar_end()), HasSubstr("no member after it"));
  std::string huge = tar_member("L", "n", 'L');
  huge.replace(124, 11, "77777777777");
  EXPECT_THAT(error(with_checksum(huge.substr(0, 512))), HasSubstr("size of an extended header"));
}

// Shortened anywhere, an archive is refused, or it ends between two members, whose contents are then right.
TEST(Tar, EveryTruncationIsNoticedOrHarmless) {
  const std::vector<std::string> expected = {"a.txt=one", "b.txt=two"};
  const std::string archive = tar_member("a.txt", "one") + tar_member("b.txt", "two") + tar_end();
  int noticed = 0;
  for (std::size_t size = 0; size < archive.size(); ++size) {
    try {
      const auto found = contents(std::string_view(archive).substr(0, size));
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin())) << size;
    } catch (const DataError&) {
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 1000);
}

TEST(Tar, EveryChangedByteOfAHeaderIsNoticed) {
  const std::string archive = tar_member("a.txt", "one") + tar_end();
  for (std::size_t i = 0; i < 512; ++i) {
    if (i == 155) continue;  // behind the digits of the checksum
    std::string damaged = archive;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_NE(error_of<DataError>([&] { contents(damaged); }), "no error") << i;
  }
}

TEST(Tar, AnEndThatMayBeLostIsRemarked) {
  const auto remark = [](const std::string& archive) {
    TarReader tar(tar_bytes(archive), "a.tar");
    while (tar.next()) {
    }
    return end_remark(tar_bytes(archive), tar.offset(), "a.tar");
  };
  const std::string member = tar_member("a.txt", "one");
  EXPECT_EQ(remark(member + tar_end()), "");
  EXPECT_EQ(remark(member + std::string(512, '\0')), "");
  EXPECT_THAT(remark(member), HasSubstr("no end mark"));
  EXPECT_THAT(remark(member + std::string(100, '\0')), HasSubstr("ends within its end mark"));
  EXPECT_THAT(remark(member.substr(0, member.size() - 100)), HasSubstr("within the padding of its last member"));
  EXPECT_THAT(remark(member.substr(0, 512 + 3)), HasSubstr("within the padding of its last member"));
  EXPECT_THAT(remark(member + tar_end() + member), HasSubstr("data after its end mark at byte 1024"));
}

std::string split(std::string_view name) {
  const auto found = split_sample_name(name);
  return found ? fmt::format("{} {}", found->key, found->part) : "-";
}

// What Energon's expressions give for these names.
TEST(SampleName, IsKeyAndPart) {
  EXPECT_EQ(split("0001.jpg"), "0001 jpg");
  EXPECT_EQ(split("000/sample.v1_0002.png"), "000/sample v1_0002.png");
  EXPECT_EQ(split("v1.2/a.b.c"), "v1.2/a b.c");
  EXPECT_EQ(split("a."), "a ");
  EXPECT_EQ(split("v1.2/a"), "-");
  EXPECT_EQ(split("nodot"), "-");
  EXPECT_EQ(split(".hidden"), "-");
  EXPECT_EQ(split("f/.txt"), "f/ txt");
  EXPECT_EQ(split("v1.2/f/.txt"), "v1.2/f/ txt");
  EXPECT_EQ(split("v1.2/.txt"), "-");
  EXPECT_EQ(split("/.txt"), "/ txt");
  EXPECT_EQ(split("__meta__/a.txt"), "-");
  EXPECT_EQ(split("____"), "-");
  EXPECT_EQ(split("___/a.txt"), "___/a txt");
  EXPECT_EQ(split("d/__meta__/a.txt"), "d/__meta__/a txt");
  EXPECT_EQ(split("__a__b.txt"), "__a__b txt");
}

}  // namespace
}  // namespace braid
