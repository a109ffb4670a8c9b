// Patches, tiles and dynamic resolution: vectors of the reference strategies, and properties.
#include <gmock/gmock.h>
#include "base/error.h"
#include "data/image/image.h"

namespace braid {

std::ostream& operator<<(std::ostream& out, const CellGrid& grid) { return out << grid.columns << " x " << grid.rows; }

namespace {

using ::testing::HasSubstr;

// Numbers the bytes of a picture of 4 x 2 pixels, which has two patches of 2.
TEST(Patches, AreChannelThenRowThenColumn) {
  Image image({4, 2});
  std::iota(image.pixels().begin(), image.pixels().end(), std::uint8_t{0});
  std::vector<std::uint8_t> rows(24);
  cut_patches(image, 2, rows);
  EXPECT_EQ(rows, (std::vector<std::uint8_t>{0, 3, 12, 15, 1, 4,  13, 16, 2, 5,  14, 17,  //
                                             6, 9, 18, 21, 7, 10, 19, 22, 8, 11, 20, 23}));
}

TEST(Patches, OfAnySize) {
  for (const int patch : {1, 7, 14, 16, 17, 32}) {
    Image image({3 * patch, 2 * patch});
    std::mt19937 random(static_cast<std::uint32_t>(patch));
    for (std::uint8_t& byte : image.pixels()) byte = static_cast<std::uint8_t>(random());
    std::vector<std::uint8_t> rows(image.byte_count()), expected;
    cut_patches(image, patch, rows);
    for (int cell = 0; cell < 6; ++cell)
      for (int channel = 0; channel < 3; ++channel)
        for (int y = 0; y < patch; ++y)
          for (int x = 0; x < patch; ++x)
            expected.push_back(image.row(cell / 3 * patch + y)[3 * (cell % 3 * patch + x) + channel]);
    EXPECT_EQ(rows, expected) << patch;
  }
}

TEST(Patches, EmbeddingCount) {
  EXPECT_EQ(embedding_count({32, 32}, true), 256);
  EXPECT_EQ(embedding_count({32, 32}, false), 1024);
}

TEST(DynamicResolution, Vectors) {
  DynamicResolutionConfig config = {.patch = 16, .divisor = 2};
  EXPECT_EQ(fit_patches({640, 480}, 13312, config), (CellGrid{40, 30}));
  EXPECT_EQ(fit_patches({1920, 1080}, 13312, config), (CellGrid{120, 68}));
  EXPECT_EQ(fit_patches({3000, 4000}, 13312, config), (CellGrid{100, 132}));
  EXPECT_EQ(fit_patches({100, 30}, 13312, config), (CellGrid{8, 2}));
  EXPECT_EQ(fit_patches({800, 600}, 256, config), (CellGrid{18, 14}));
  config.min_patches = 1024;
  EXPECT_EQ(fit_patches({100, 30}, 13312, config), (CellGrid{60, 18}));
}

// Half to even: an odd multiple of the patch gains a patch, an even one does not.
TEST(DynamicResolution, OddMultiplesGainAPatch) {
  const DynamicResolutionConfig config = {.patch = 16};
  EXPECT_EQ(fit_patches({528, 512}, 1 << 20, config), (CellGrid{34, 32}));
}

TEST(DynamicResolution, ShortSidesAreEnlarged) {
  DynamicResolutionConfig config = {.patch = 16, .min_side = 512};
  EXPECT_EQ(fit_patches({512, 256}, 1 << 20, config), (CellGrid{64, 32}));
  EXPECT_EQ(fit_patches({256, 512}, 1 << 20, config), (CellGrid{32, 64}));
  EXPECT_EQ(fit_patches({512, 256}, 1100, config), (CellGrid{34, 32})) << "the long side gets what is left";
  EXPECT_EQ(fit_patches({512, 256}, 800, config), (CellGrid{40, 20})) << "it would be too short: the aspect is kept";
  EXPECT_EQ(fit_patches({256, 512}, 800, config), (CellGrid{32, 25})) << "as in the reference, not of tall pictures";
}

TEST(DynamicResolution, BudgetAndDivisorHold) {
  std::mt19937 random(3);
  const auto side = [&] { return 1 + static_cast<int>(random() % (random() % 8 == 0 ? 60'000 : 4000)); };
  for (int trial = 0; trial < 20'000; ++trial) {
    const int divisor = 1 << random() % 3;
    const std::int64_t min_patches = random() % 2 == 0 ? 0 : 1024, budget = 16 + random() % 14'000;
    const DynamicResolutionConfig config = {.patch = random() % 2 == 0 ? 14 : 16,
                                            .min_patches = min_patches,
                                            .min_side = random() % 2 == 0 ? 0 : 512,
                                            .divisor = divisor};
    const PixelSize picture = {side(), side()};
    const CellGrid grid = fit_patches(picture, budget, config);
    ASSERT_LE(grid.cells(), budget) << picture.width << " x " << picture.height << " in " << budget << " is " << grid;
    ASSERT_TRUE(grid.columns >= divisor && grid.rows >= divisor && grid.columns % divisor == 0 &&
                grid.rows % divisor == 0)
        << grid;
  }
}

// Computed with the reference's steps.
TEST(DynamicResolution, VectorsOfSeveralPictures) {
  using Grids = std::vector<CellGrid>;
  EXPECT_EQ(fit_images({{1920, 1080}, {640, 480}, {3000, 4000}}, 2048,
                       {.min_patches = 1024, .max_patches = 13312, .divisor = 2}),
            (Grids{{80, 44}, {36, 28}, {52, 68}}));
  EXPECT_EQ(fit_images({{4000, 300}, {300, 300}}, 1500,
                       {.min_patches = 256, .max_patches = 13312, .min_side = 512, .divisor = 4}),
            (Grids{{416, 32}, {32, 32}}));
  EXPECT_EQ(fit_images({{800, 600}, {800, 600}, {800, 600}, {800, 600}, {800, 600}, {800, 600}}, 700,
                       {.patch = 14, .min_patches = 64, .max_patches = 1024, .divisor = 2}),
            Grids(6, {24, 18}));
}

TEST(DynamicResolution, PicturesShareTheRoom) {
  const DynamicResolutionConfig config = {.patch = 16, .min_patches = 64, .max_patches = 4096, .divisor = 2};
  EXPECT_EQ(fit_images({{640, 480}}, 1000, config).front(), fit_patches({640, 480}, 4000, config));
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<PixelSize> pictures(1 + random() % 12);
    for (PixelSize& picture : pictures)
      picture = {1 + static_cast<int>(random() % 3000), 1 + static_cast<int>(random() % 3000)};
    const std::int64_t embeddings = random() % 8000;
    std::int64_t total = 0;
    for (const CellGrid& grid : fit_images(pictures, embeddings, config)) {
      EXPECT_LE(grid.cells(), config.max_patches);
      total += grid.cells();
    }
    EXPECT_LE(total, std::max<std::int64_t>(embeddings * 4, config.min_patches * std::ssize(pictures)));
  }
  EXPECT_TRUE(fit_images({}, 100, config).empty());
}

TEST(Tiles, ClosestAspect) {
  const TilingConfig config = {.tile = 448, .max_tiles = 12};
  EXPECT_EQ(choose_tiles({896, 448}, config), (CellGrid{2, 1}));
  EXPECT_EQ(choose_tiles({1344, 448}, config), (CellGrid{3, 1}));
  EXPECT_EQ(choose_tiles({448, 1792}, config), (CellGrid{1, 4}));
  // 1 x 1, 2 x 2 and 3 x 3 have the same aspect: the largest that the picture fills by more than half.
  EXPECT_EQ(choose_tiles({300, 300}, config), (CellGrid{1, 1}));
  EXPECT_EQ(choose_tiles({633, 633}, config), (CellGrid{1, 1}));
  EXPECT_EQ(choose_tiles({634, 634}, config), (CellGrid{2, 2}));
  EXPECT_EQ(choose_tiles({2000, 2000}, config), (CellGrid{3, 3}));
}

TEST(Tiles, MaxTilesAreLoweredUntilTheyFit) {
  const TilingConfig config = {.tile = 448, .max_tiles = 12, .thumbnail = true};
  EXPECT_EQ(fit_tiles({{2000, 2000}}, 2560, 256, config).front(), (CellGrid{3, 3})) << "9 tiles and a thumbnail";
  EXPECT_EQ(fit_tiles({{2000, 2000}}, 2559, 256, config).front(), (CellGrid{2, 2}));
  EXPECT_EQ(fit_tiles({{2000, 2000}}, 1279, 256, config).front(), (CellGrid{1, 1})) << "at most 2 tiles, so no square";
  EXPECT_EQ(fit_tiles({{2000, 2000}}, 0, 256, config).front(), (CellGrid{1, 1}));
  EXPECT_EQ(tile_count({1, 1}, config), 1);
  EXPECT_EQ(tile_count({2, 1}, config), 3);
}

TEST(Tiles, AreCut) {
  Image image({4, 4});
  std::iota(image.pixels().begin(), image.pixels().end(), std::uint8_t{0});
  const Image tile = cut_tile(image, 2, 1, 1);
  EXPECT_EQ(std::vector<std::uint8_t>(tile.pixels().begin(), tile.pixels().end()),
            (std::vector<std::uint8_t>{30, 31, 32, 33, 34, 35, 42, 43, 44, 45, 46, 47}));
}

}  // namespace
}  // namespace braid
