// Headers of written and of invented files.
#include <gmock/gmock.h>
#include "base/error.h"
#include "data/image/decode.h"
#include "data/image/sample_files.h"

namespace braid {
namespace {

using testing::FileBytes;
using ::testing::HasSubstr;

std::string refusal(const FileBytes& bytes, std::int64_t most_pixels = kMostPixels) {
  try {
    read_header(bytes, "dir/photo", most_pixels);
  } catch (const DataError& e) {
    return e.what();
  }
  return "accepted";
}

FileBytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// A PNG of any size, with nothing after IHDR.
FileBytes png_of(std::uint32_t width, std::uint32_t height) {
  FileBytes bytes = bytes_of({"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16});
  for (const std::uint32_t side : {width, height})
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(side >> shift));
  bytes.insert(bytes.end(), {8, 2, 0, 0, 0, 0, 0, 0, 0});
  return bytes;
}

TEST(ImageHeader, SizeAndOrientation) {
  struct Expected {
    ImageFormat format;
    PixelSize stored;
    int orientation;
  };
  const std::map<std::string, Expected> expected = {
      {"baseline_turned.jpg", {ImageFormat::Jpeg, {24, 17}, 6}},
      {"progressive_restarts.jpg", {ImageFormat::Jpeg, {24, 17}, 1}},
      {"rgba_mirrored.png", {ImageFormat::Png, {12, 9}, 2}},
      {"interlaced_16.png", {ImageFormat::Png, {9, 5}, 1}},
      {"lossy.webp", {ImageFormat::Webp, {24, 17}, 1}},
      {"lossless.webp", {ImageFormat::Webp, {12, 9}, 1}},
      {"alpha_turned.webp", {ImageFormat::Webp, {24, 17}, 8}},
      {"animated.webp", {ImageFormat::Webp, {16, 12}, 1}},
  };
  for (const auto& [name, wanted] : expected) {
    const ImageHeader header = read_header(testing::sample_file(name), name);
    EXPECT_EQ(header.format, wanted.format) << name;
    EXPECT_EQ(header.stored, wanted.stored) << name;
    EXPECT_EQ(header.orientation, wanted.orientation) << name;
  }
  EXPECT_EQ(read_header(testing::sample_file("baseline_turned.jpg"), "").oriented(), (PixelSize{17, 24}));
}

TEST(ImageHeader, DecodedSizeIsTheHeaders) {
  for (const auto& [name, bytes] : testing::sample_files()) {
    const ImageHeader header = read_header(bytes, name);
    EXPECT_EQ(decode(bytes, name).size(), header.oriented()) << name;
    EXPECT_EQ(decode(bytes, name, {.orient = false}).size(), header.stored) << name;
  }
}

TEST(ImageHeader, TooLargePicturesAreRefused) {
  EXPECT_EQ(refusal(png_of(50'000, 50'000)),
            "dir/photo: 50000 x 50000 pixels are more than the limit of 178956970 pixels; scale the picture down");
  EXPECT_THAT(refusal(png_of(0xffffffff, 1)), HasSubstr("a side is longer than 1000000"));
  EXPECT_THAT(refusal(png_of(0, 5)), HasSubstr("invalid size 0 x 5"));
  EXPECT_EQ(refusal(png_of(40, 25), 1000), "accepted");
  EXPECT_THAT(refusal(png_of(40, 26), 1000), HasSubstr("limit of 1000 pixels"));
  EXPECT_THROW(decode(png_of(50'000, 50'000), "bomb"), DataError);
}

TEST(ImageHeader, OtherFilesAreRefused) {
  EXPECT_EQ(refusal({}), "dir/photo: the file is empty");
  EXPECT_EQ(refusal(bytes_of("GIF89a")), "dir/photo: this is not a JPEG, PNG or WebP file, but a GIF");
  EXPECT_THAT(refusal(bytes_of("\xff\xd8\xff\xda")), HasSubstr("without a frame header"));
  EXPECT_THAT(refusal(bytes_of({"\xff\xd8\xff\xe1\0\1", 6})), HasSubstr("segment of invalid length at byte 4"));
  EXPECT_THAT(refusal(bytes_of({"RIFF\4\0\0\0WEBP", 12})), HasSubstr("ends early, after 12 bytes"));
}

// An orientation of 9, and a directory that lies outside of the block.
TEST(ImageHeader, DamagedExifIsIgnored) {
  FileBytes jpeg = testing::sample_file("baseline_turned.jpg");
  const std::string tag = {"\x12\x01\x03\x00\x01\x00\x00\x00\x06", 9};
  const auto found = std::search(jpeg.begin(), jpeg.end(), tag.begin(), tag.end(), [](std::uint8_t byte, char wanted) {
    return byte == static_cast<std::uint8_t>(wanted);
  });
  const auto big_endian = std::string{"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06", 10};
  const auto other = std::search(jpeg.begin(), jpeg.end(), big_endian.begin(), big_endian.end());
  ASSERT_TRUE(found != jpeg.end() || other != jpeg.end());
  *(found != jpeg.end() ? found + 8 : other + 9) = 9;
  EXPECT_EQ(read_header(jpeg, "").orientation, 1);
  const std::string prefix = {"Exif\0\0", 6};
  const auto exif = std::search(jpeg.begin(), jpeg.end(), prefix.begin(), prefix.end());
  std::fill(exif + 10, exif + 14, std::uint8_t{0x7f});
  EXPECT_EQ(read_header(jpeg, "").orientation, 1);
  EXPECT_EQ(decode(jpeg, "").size(), (PixelSize{24, 17}));
}

}  // namespace
}  // namespace braid
