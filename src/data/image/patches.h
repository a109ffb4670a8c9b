// Pictures as rows of patches, the input of vision encoders.
#pragma once

#include <cstdint>
#include <span>

#include "data/image/image.h"

namespace braid {

// Patches or tiles of a picture.
struct CellGrid {
  int columns = 0, rows = 0;
  std::int64_t cells() const { return std::int64_t{columns} * rows; }
  PixelSize pixels(int cell_side) const { return {columns * cell_side, rows * cell_side}; }
  bool operator==(const CellGrid&) const = default;
};

// Writes the patches row by row, each as (channel, y, x): c (py yy) (px xx) -> (py px) (c yy xx). The sides of the
// picture are multiples of `patch`; `rows` has as many bytes as the picture.    rows: [patches, 3 * patch * patch]
void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows);

// How many embeddings the language model receives for one picture or tile. A pixel shuffle joins 2 x 2 patches.
std::int64_t embedding_count(const CellGrid& patches, bool pixel_shuffle);

}  // namespace braid
