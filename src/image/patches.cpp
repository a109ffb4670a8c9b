#include "image/patches.h"

#include "base/error.h"

namespace braid {
void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows) {
  const auto [width, height] = image.size();
  BRAID_CHECK(patch > 0 && width % patch == 0 && height % patch == 0, "{} x {} pixels, patches of {}", width, height,
              patch);
  BRAID_CHECK_EQ(rows.size(), image.byte_count(), "bytes for patches");
  std::uint8_t* to = rows.data();
  for (int top = 0; top < height; top += patch)
    for (int left = 0; left < width; left += patch)
      for (int channel = 0; channel < 3; ++channel)
        for (int y = top; y < top + patch; ++y) {
          const std::uint8_t* from = image.row(y) + std::size_t{3} * left + channel;
          for (int x = 0; x < patch; ++x) *to++ = from[3 * x];
        }
}

std::int64_t embedding_count(const CellGrid& patches, bool pixel_shuffle) {
  return pixel_shuffle ? patches.cells() / 4 : patches.cells();
}

}  // namespace braid
