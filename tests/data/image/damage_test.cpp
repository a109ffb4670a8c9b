// Damaged pictures: each is refused with a DataError or gives a picture of the size in its header.
#include <gtest/gtest.h>
#include "data/image/sample_files.h"
#include "fuzz/image_targets.h"

namespace braid {
namespace {

using testing::FileBytes;

TEST(ImageDamage, SamplesAreWhole) {
  for (const auto& [name, bytes] : testing::sample_files()) EXPECT_TRUE(testing::fuzz_image(bytes)) << name;
}

// Only the chunks or markers after the pixels may be missing.
TEST(ImageDamage, EveryTruncation) {
  for (const auto& [name, bytes] : testing::sample_files()) {
    std::size_t accepted = 0;
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      SCOPED_TRACE(name + " cut to " + std::to_string(length));
      const FileBytes part(bytes.begin(),
                           bytes.begin() + static_cast<std::ptrdiff_t>(length));  // exact, for sanitizers
      bool is_accepted = false;
      EXPECT_NO_THROW(is_accepted = testing::fuzz_image(part));
      EXPECT_NO_THROW(testing::fuzz_image_header(part));
      accepted += is_accepted;
    }
    EXPECT_LE(accepted, 20u) << name;
  }
}

TEST(ImageDamage, FlippedBits) {
  std::mt19937 random(20);
  for (const auto& [name, bytes] : testing::sample_files()) {
    int accepted = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      FileBytes damaged = bytes;
      for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
        damaged[random() % damaged.size()] ^= static_cast<std::uint8_t>(1 << random() % 8);
      SCOPED_TRACE(name + " in trial " + std::to_string(trial));
      EXPECT_NO_THROW(accepted += testing::fuzz_image(damaged));
    }
    EXPECT_GT(accepted, 0) << name;     // not every bit matters
    EXPECT_LT(accepted, 2000) << name;  // and some damage is found
  }
}

// A progressive JPEG whose last scan is repeated: every scan visits all pixels.
TEST(ImageDamage, EndlessScans) {
  const FileBytes jpeg = testing::sample_file("progressive_restarts.jpg");
  const auto is_scan = [&](std::size_t at) { return jpeg[at] == 0xff && jpeg[at + 1] == 0xda; };
  std::size_t last = jpeg.size() - 2;
  while (!is_scan(last)) --last;
  const FileBytes scan(jpeg.begin() + static_cast<std::ptrdiff_t>(last), jpeg.end() - 2);
  FileBytes bomb(jpeg.begin(), jpeg.end() - 2);
  for (int i = 0; i < 1000; ++i) bomb.insert(bomb.end(), scan.begin(), scan.end());
  bomb.insert(bomb.end(), {0xff, 0xd9});
  try {
    decode(bomb, "bomb");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_STREQ(e.what(), "bomb: damaged JPEG: more than 500 scans");
  }
}

}  // namespace
}  // namespace braid
