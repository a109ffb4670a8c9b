#include "image/patches.h"

#include "base/error.h"

namespace braid {

void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows) {
  const auto [width, height] = image.size();
  BRAID_CHECK(patch > 0 && width % patch == 0 && height % patch == 0, "{} x {} pixels, patches of {}", width, height,
              patch);
  BRAID_CHECK_EQ(rows.size(), image.byte_count(), "bytes for patches");
  const std::size_t channel = static_cast<std::size_t>(patch) * patch;
  std::uint8_t* __restrict to = rows.data();
  for (int top = 0; top < height; top += patch)
    for (int left = 0; left < width; left += patch, to += 2 * channel)
      for (int y = top; y < top + patch; ++y, to += patch) {
        const std::uint8_t* __restrict from = image.row(y) + std::size_t{3} * left;
        for (int x = 0; x < patch; ++x)
          for (std::size_t c = 0; c < 3; ++c) to[c * channel + x] = from[3 * x + c];
      }
}

std::int64_t embedding_count(const CellGrid& patches, bool pixel_shuffle) {
  return pixel_shuffle ? patches.cells() / 4 : patches.cells();
}

}  // namespace braid
