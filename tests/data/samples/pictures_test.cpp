// Sizes that pictures get, and their pixels: decoded, resized and cut in separate steps, which image_test compares with
// Pillow.
#include <gtest/gtest.h>
#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/samples/stored_sample.h"
#include "data/samples/token_sequence.h"

namespace braid {
namespace {

const VisionInput kVision = {.patch = 16, .pixel_shuffle = true};

TEST(PicturePlans, KeepSizesAtDynamicResolution) {
  const auto plans = plan_pictures({{640, 480}, {100, 30}}, 10000, {}, kVision);
  ASSERT_EQ(plans.size(), 2u);
  ASSERT_EQ(plans[0].size(), 1u);
  EXPECT_EQ(plans[0][0].patches, (CellGrid{40, 30}));
  EXPECT_EQ(plans[0][0].resized, (PixelSize{640, 480}));
  EXPECT_EQ(plans[0][0].embeddings, 300);
  EXPECT_EQ(plans[1][0].patches, (CellGrid{8, 2}));
  EXPECT_EQ(plans[1][0].picture, 1u);
  EXPECT_EQ(plan_pictures({{640, 480}}, 10000, {.max_patches = 256}, kVision)[0][0].patches.cells() <= 256, true);
}

TEST(PicturePlans, ShrinkToTheRoom) {
  for (const std::int64_t room : {1000, 300, 100, 20}) {
    std::int64_t embeddings = 0;
    for (const auto& plan : plan_pictures({{640, 480}, {480, 640}}, room, {}, kVision))
      embeddings += plan[0].embeddings;
    EXPECT_LE(embeddings, room);
    EXPECT_GT(embeddings, room / 4);
  }
}

TEST(PicturePlans, CutTilesAndAddAThumbnail) {
  const PictureConfig config = {.fit = PictureFit::Tiles, .tile_side = 64, .max_tiles = 6, .thumbnail = true};
  const auto plans = plan_pictures({{300, 200}, {50, 50}}, 10000, config, kVision);
  ASSERT_EQ(plans[0].size(), 7u);
  for (int i = 0; i < 6; ++i) {
    const MediaPlan& tile = plans[0][static_cast<std::size_t>(i)];
    EXPECT_EQ(tile.resized, (PixelSize{192, 128}));
    EXPECT_EQ(tile.patches, (CellGrid{4, 4}));
    EXPECT_EQ(tile.embeddings, 4);
    EXPECT_EQ(std::pair(tile.tile_column, tile.tile_row), std::pair(i % 3, i / 3));
  }
  EXPECT_EQ(plans[0][6].resized, (PixelSize{64, 64}));
  ASSERT_EQ(plans[1].size(), 1u) << "one tile is the whole picture";
}

TEST(PicturePlans, AreSquareIfTheEncoderOrTheRecipeSaysSo) {
  VisionInput square = kVision;
  square.square = 6;
  EXPECT_EQ(plan_pictures({{300, 200}}, 10000, {}, square)[0][0].patches, (CellGrid{6, 6}));
  EXPECT_EQ(plan_pictures({{300, 200}}, 10000, {.fit = PictureFit::Square, .tile_side = 64}, kVision)[0][0].resized,
            (PixelSize{64, 64}));
}

std::vector<std::uint8_t> patches_of(const Image& image) {
  std::vector<std::uint8_t> rows(image.byte_count());
  cut_patches(image, kVision.patch, rows);
  return rows;
}

void expect_pixels(const PictureConfig& config, const std::vector<std::vector<std::uint8_t>>& expected) {
  const std::string file = testing::some_png({150, 100});
  const auto inputs = plan_pictures({{150, 100}}, 10000, config, kVision)[0];
  std::vector<std::uint8_t> wanted;
  for (const auto& rows : expected) wanted.insert(wanted.end(), rows.begin(), rows.end());
  std::vector<std::uint8_t> rows(wanted.size());
  write_patches(decode_for({"png", file}, inputs, config), inputs, config, kVision.patch, rows);
  EXPECT_EQ(rows, wanted);
}

TEST(PicturePixels, AreThoseOfTheResizedPicture) {
  const Image picture = testing::some_picture({150, 100});
  expect_pixels({.filter = ResizeFilter::Bilinear}, {patches_of(resize(picture, {160, 128}, ResizeFilter::Bilinear))});
  expect_pixels({}, {patches_of(resize(picture, {160, 128}, ResizeFilter::Bicubic))});
}

TEST(PicturePixels, AreGreyIfBlank) { expect_pixels({.blank = true}, {std::vector<std::uint8_t>(160 * 128 * 3, 128)}); }

TEST(PicturePixels, AreThoseOfEachTileAndTheThumbnail) {
  const Image picture = testing::some_picture({150, 100});
  const Image resized = resize(picture, {96, 64}, ResizeFilter::Bicubic);
  std::vector<std::vector<std::uint8_t>> expected;
  for (const int row : {0, 1})
    for (const int column : {0, 1, 2}) expected.push_back(patches_of(cut_tile(resized, 32, column, row)));
  expected.push_back(patches_of(resize(picture, {32, 32}, ResizeFilter::Bicubic)));
  expect_pixels({.fit = PictureFit::Tiles, .tile_side = 32, .max_tiles = 6, .thumbnail = true}, expected);
}

}  // namespace
}  // namespace braid
