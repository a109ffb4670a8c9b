#include "data/image/orient.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace braid {
namespace {

// Where the pixels of the result lie in the stored picture: (x, y) is at `first + x * right + y * down`, in bytes.
struct Walk {
  std::ptrdiff_t first, right, down;
};

Walk walk_of(int orientation, PixelSize stored) {
  const std::ptrdiff_t pixel = 3, row = pixel * stored.width;
  const std::ptrdiff_t last_in_row = row - pixel, last_row = row * (stored.height - 1);
  switch (orientation) {
    case 2:
      return {last_in_row, -pixel, row};  // mirrored
    case 3:
      return {last_row + last_in_row, -pixel, -row};  // turned by 180 degrees
    case 4:
      return {last_row, pixel, -row};  // upside down
    case 5:
      return {0, row, pixel};  // transposed
    case 6:
      return {last_row, -row, pixel};  // to be turned right by 90 degrees
    case 7:
      return {last_row + last_in_row, -row, -pixel};  // transposed along the other diagonal
    case 8:
      return {last_in_row, row, -pixel};  // to be turned left by 90 degrees
    default:
      BRAID_CHECK(false, "orientation {}", orientation);
  }
}

}  // namespace

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
