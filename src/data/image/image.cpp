#include "data/image/image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"

namespace braid {
namespace {

// Where the pixels of the result lie in the stored image: (x, y) is at `first + x * right + y * down`, in bytes. EXIF's
// orientations 1 to 4 are flips; 5 to 8 exchange rows and columns, too.
struct Walk {
  std::ptrdiff_t first, right, down;
};

Walk walk_of(int orientation, PixelSize stored) {
  BRAID_CHECK(orientation >= 1 && orientation <= 8, "orientation {}", orientation);
  const bool from_right = orientation == 2 || orientation == 3 || orientation >= 7;
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::ptrdiff_t pixel = 3, row = pixel * stored.width;
  const std::ptrdiff_t first = (from_right ? row - pixel : 0) + (from_below ? row * (stored.height - 1) : 0);
  const std::ptrdiff_t along_row = from_right ? -pixel : pixel, across_rows = from_below ? -row : row;
  return orientation < 5 ? Walk{first, along_row, across_rows} : Walk{first, across_rows, along_row};
}

}  // namespace

Image::Data Image::allocate(std::size_t bytes) {
  // From here on glibc maps every block anew instead of reusing freed ones.
  constexpr std::size_t kLarge = std::size_t{32} << 20, kLargePage = std::size_t{2} << 20;
  const bool is_large = bytes >= kLarge;
  const std::size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  Data data(static_cast<std::uint8_t*>(is_large ? std::aligned_alloc(kLargePage, whole) : std::malloc(bytes)));
  if (!data) throw std::bad_alloc();
  if (is_large) madvise(data.get(), whole, MADV_HUGEPAGE);  // only a hint: failing does no harm
  return data;
}

Image oriented(Image stored, int orientation) {
  if (orientation == 1) return stored;
  const Walk walk = walk_of(orientation, stored.size());
  const PixelSize from = stored.size();
  Image result(orientation < 5 ? from : PixelSize{from.height, from.width});
  const std::uint8_t* first = stored.pixels().data() + walk.first;
  // Blocks keep the lines of the cache that a transposition reads until all their pixels are used.
  constexpr int kBlock = 32;
  const auto [width, height] = result.size();
  for (int top = 0; top < height; top += kBlock)
    for (int left = 0; left < width; left += kBlock)
      for (int y = top; y < std::min(top + kBlock, height); ++y)
        for (int x = left; x < std::min(left + kBlock, width); ++x)
          std::memcpy(result.row(y) + std::ptrdiff_t{3} * x, first + x * walk.right + y * walk.down, 3);
  return result;
}

}  // namespace braid
