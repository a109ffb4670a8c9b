// That sliders of a page agree with `braid plan simulate` is tested in a browser: tests/pages/what_if_test.py.
#include "predict/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using ::testing::ElementsAre;

Recipe recipe_of(const std::string& provider, int items) {
  return parse_recipe(
      "topology: {modules: {images: {kind: encoder}, language: {kind: language}}}\nmodel: {provider: " + provider +
      "}\ntrain: {global_batch: 4}\ndata: {media: {images: {max_items: " + std::to_string(items) + "}}}\n");
}

StepSizes::Extents images_of(const Recipe& recipe, double factor) {
  return with_media(full_sample(recipe), recipe, factor).media.front();
}

std::vector<double> media_stops(const Recipe& recipe) {
  const HardwareProfile hardware = load_hardware("h100");
  const std::vector<WhatIfAxis> axes = WhatIf(recipe, hardware, {}, {}).axes();
  return axes.empty() ? std::vector<double>{} : axes.front().stops;
}

TEST(WhatIf, HalfAnImageIsASmallerOne) {
  const Recipe recipe = recipe_of("tiny-vlm", 1);
  EXPECT_THAT(images_of(recipe, 1), ElementsAre(ElementsAre(8, 8)));
  EXPECT_THAT(images_of(recipe, 0.5), ElementsAre(ElementsAre(4, 8)));
  EXPECT_THAT(images_of(recipe, 2), ElementsAre(ElementsAre(8, 8), ElementsAre(8, 8)));
}

// CLIP has images of one size, and a sequence has room for so many.
TEST(WhatIf, OnlySamplesThatCanExistAreOffered) {
  EXPECT_THAT(media_stops(recipe_of("tiny-vlm", 1)), ElementsAre(0.5, 1, 2));
  EXPECT_THAT(media_stops(recipe_of("tiny-vlm", 1000)), ElementsAre(0.5, 1));
  EXPECT_THAT(media_stops(recipe_of("tiny-llava", 2)), ::testing::Contains(0.5));
  EXPECT_THAT(media_stops(recipe_of("tiny-llava", 1)), ::testing::Not(::testing::Contains(0.5)));
}

}  // namespace
}  // namespace braid
