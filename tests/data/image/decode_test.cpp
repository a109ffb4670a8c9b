// Scaled decoding of JPEG and the first frame of animations; tests/oracles/image_test.py compares pixels with Pillow.
#include "data/image/decode.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/image/sample_files.h"

namespace braid {
namespace {

// The smallest of 1/8, 1/4, 1/2 at which both sides reach the target, else the full size. The stored picture has 24 x
// 17 pixels and is turned to 17 x 24.
TEST(ScaledDecode, ChoosesTheSmallestScaleThatReachesTheTarget) {
  const auto bytes = testing::sample_file("baseline_turned.jpg");
  const auto decoded = [&](PixelSize target, bool orient = true) {
    return decode(bytes, "", {.orient = orient, .scale_for = target}).size();
  };
  EXPECT_EQ(decoded({1, 1}), (PixelSize{3, 3}));
  EXPECT_EQ(decoded({3, 3}), (PixelSize{3, 3}));
  EXPECT_EQ(decoded({4, 3}), (PixelSize{5, 6}));
  EXPECT_EQ(decoded({5, 6}), (PixelSize{5, 6}));
  EXPECT_EQ(decoded({5, 7}), (PixelSize{9, 12}));
  EXPECT_EQ(decoded({7, 5}, /*orient=*/false), (PixelSize{12, 9}));
  EXPECT_EQ(decoded({10, 12}), (PixelSize{17, 24}));
  EXPECT_EQ(decoded({500, 500}), (PixelSize{17, 24}));
}

TEST(ScaledDecode, OtherFormatsHaveNoScale) {
  for (const char* name : {"rgba_mirrored.png", "lossless.webp"})
    EXPECT_EQ(decode(testing::sample_file(name), name, {.scale_for = PixelSize{1, 1}}).size(), (PixelSize{12, 9}));
}

TEST(Decode, ErrorsNameTheFile) {
  auto bytes = testing::sample_file("grey.jpg");
  bytes.resize(bytes.size() - 20);
  try {
    decode(bytes, "shard.tar/7.jpg");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_STREQ(e.what(), "shard.tar/7.jpg: the JPEG file ends early");
  }
}

TEST(Decode, MissingLibrariesAreNamed) {
  try {
    throw_missing_library(ImageFormat::Webp, "libwebp");
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.problems().front().what, "this build of braid cannot decode WebP: it was compiled without libwebp");
  }
}

}  // namespace
}  // namespace braid
