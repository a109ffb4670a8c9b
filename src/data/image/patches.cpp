#include "data/image/patches.h"

#include <type_traits>

#include "base/error.h"

// The compiler makes a second version for AVX2, chosen at run time: plain x86-64 has no instruction that helps to take
// every third byte.
#ifdef __x86_64__
#define BRAID_ALSO_FOR_AVX2 __attribute__((target_clones("avx2", "default")))
#else
#define BRAID_ALSO_FOR_AVX2
#endif

namespace braid {
namespace {

// `patch` may be a constant, for which the compiler makes faster code.
template <class Side>
inline void split_channels(const std::uint8_t* __restrict from, std::size_t row_bytes, Side patch,
                           std::uint8_t* __restrict to) {
  const std::size_t channel = static_cast<std::size_t>(patch) * patch;
  for (int y = 0; y < patch; ++y, from += row_bytes, to += patch)
    for (int x = 0; x < patch; ++x)
      for (std::size_t c = 0; c < 3; ++c) to[c * channel + x] = from[3 * x + c];
}

BRAID_ALSO_FOR_AVX2 void cut_patch(const std::uint8_t* from, std::size_t row_bytes, int patch, std::uint8_t* to) {
  if (patch == 16)
    split_channels(from, row_bytes, std::integral_constant<int, 16>(), to);
  else
    split_channels(from, row_bytes, patch, to);
}

}  // namespace

void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows) {
  const auto [width, height] = image.size();
  BRAID_CHECK(patch > 0 && width % patch == 0 && height % patch == 0, "{} x {} pixels, patches of {}", width, height,
              patch);
  BRAID_CHECK_EQ(rows.size(), image.byte_count(), "bytes for patches");
  std::uint8_t* to = rows.data();
  for (int top = 0; top < height; top += patch)
    for (int left = 0; left < width; left += patch, to += std::ptrdiff_t{3} * patch * patch)
      cut_patch(image.row(top) + std::size_t{3} * left, image.row_bytes(), patch, to);
}

std::int64_t embedding_count(const CellGrid& patches, bool pixel_shuffle) {
  return pixel_shuffle ? patches.cells() / 4 : patches.cells();
}

}  // namespace braid
