// Resizing and orientation. tests/oracles/image_test.py compares with Pillow; here the vector code is compared
// with plain loops.

#include <gtest/gtest.h>
#include "data/image/image.h"

namespace braid {
namespace {

Image noise(PixelSize size, std::uint32_t seed) {
  std::mt19937 random(seed);
  Image image(size);
  for (std::uint8_t& byte : image.pixels())
    byte = static_cast<std::uint8_t>(random() % 5 == 0 ? random() : 255 * (random() % 2));
  return image;
}

bool operator==(const Image& a, const Image& b) {
  return a.size() == b.size() && std::equal(a.pixels().begin(), a.pixels().end(), b.pixels().begin());
}

// One axis after the other, pixel by pixel, in the order of Pillow 13.
Image plainly_resized(const Image& image, PixelSize to, ResizeFilter filter) {
  const auto along = [&](const Image& from, int outputs, bool is_vertical) {
    const auto [width, height] = from.size();
    const ResizeWeights weights = resize_weights(filter, is_vertical ? height : width, outputs);
    Image result(is_vertical ? PixelSize{width, outputs} : PixelSize{outputs, height});
    for (int y = 0; y < result.size().height; ++y)
      for (int x = 0; x < result.size().width; ++x)
        for (int channel = 0; channel < 3; ++channel) {
          const int output = is_vertical ? y : x;
          const auto [first, count] = weights.windows[static_cast<std::size_t>(output)];
          int sum = 1 << (kWeightBits - 1);
          for (int k = first; k < first + count; ++k)
            sum += from.row(is_vertical ? k : y)[3 * (is_vertical ? x : k) + channel] * weights.of(output)[k - first];
          result.row(y)[3 * x + channel] = static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
        }
    return result;
  };
  const auto [width, height] = image.size();
  if (to.height < height && height - to.height > 2 * (width - to.width))
    return along(along(image, to.height, true), to.width, false);
  return along(along(image, to.width, false), to.height, true);
}

TEST(Resize, VectorVersionEqualsThePlainOne) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const auto side = [&] { return 1 + static_cast<int>(random() % (trial % 10 == 0 ? 300 : 40)); };
    const PixelSize from = {side(), side()}, to = {side(), side()};
    const Image image = noise(from, random());
    for (const ResizeFilter filter : {ResizeFilter::Bicubic, ResizeFilter::Bilinear})
      EXPECT_TRUE(resize(image, to, filter) == plainly_resized(image, to, filter))
          << from.width << " x " << from.height << " to " << to.width << " x " << to.height;
  }
}

TEST(Resize, KeepsConstantPictures) {
  for (const int level : {0, 1, 128, 255})
    for (const PixelSize to : {PixelSize{1, 1}, PixelSize{97, 3}, PixelSize{10, 200}, PixelSize{3500, 3300}}) {
      Image image({31, 19});
      std::fill(image.pixels().begin(), image.pixels().end(), static_cast<std::uint8_t>(level));
      const Image result = resize(image, to, ResizeFilter::Bicubic);
      EXPECT_EQ(std::count(result.pixels().begin(), result.pixels().end(), level), to.pixels() * 3);
    }
}

TEST(Resize, SameSizeIsACopy) {
  const Image image = noise({13, 8}, 1);
  EXPECT_TRUE(resize(image, {13, 8}, ResizeFilter::Bicubic) == image);
}

// The pixel in the top left corner of the stored picture, by orientation; the others are elsewhere.
TEST(Orient, CornerGoesWhereExifSays) {
  struct Corner {
    int orientation, x, y;
  };
  for (const auto& [orientation, x, y] :
       {Corner{1, 0, 0}, {2, 2, 0}, {3, 2, 1}, {4, 0, 1}, {5, 0, 0}, {6, 1, 0}, {7, 1, 2}, {8, 0, 2}}) {
    Image image({3, 2});
    for (int i = 0; i < 18; ++i) image.pixels()[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
    const Image result = oriented(std::move(image), orientation);
    EXPECT_EQ(result.size(), orientation < 5 ? (PixelSize{3, 2}) : (PixelSize{2, 3})) << orientation;
    for (int channel = 0; channel < 3; ++channel) EXPECT_EQ(result.row(y)[3 * x + channel], channel) << orientation;
  }
}

}  // namespace
}  // namespace braid
