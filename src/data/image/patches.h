// Images as rows of patches, the input of vision encoders, and into how many patches or tiles an image is resized: with
// dynamic resolution, each image keeps about its size and aspect within a budget of patches; with fixed tiling, it is
// resized to a grid of square tiles of about its aspect, and cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/image/image.h"

namespace braid {

// Patches or tiles of an image.
struct CellGrid {
  int columns = 0, rows = 0;
  std::int64_t cells() const { return std::int64_t{columns} * rows; }
  PixelSize pixels(int cell_side) const { return {columns * cell_side, rows * cell_side}; }
  bool operator==(const CellGrid&) const = default;
};

// Writes the patches row by row, each as (channel, y, x): c (py yy) (px xx) -> (py px) (c yy xx). The sides of the
// image are multiples of `patch`; `rows` has as many bytes as the image.    rows: [patches, 3 * patch * patch]
void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows);

// How many embeddings the language model receives for one image or tile. A pixel shuffle joins 2 x 2 patches.
std::int64_t embedding_count(const CellGrid& patches, bool pixel_shuffle);

struct DynamicResolutionConfig {
  int patch = 16;                // pixels per side
  std::int64_t min_patches = 0;  // smaller images are enlarged to about as many
  std::int64_t max_patches = 0;  // per image; 0: no limit but the budget
  int min_side = 0;              // pixels; 0: none
  int divisor = 1;               // sides in patches are multiples of it: 2 if 2 x 2 patches are joined
};

// The patches of one image. Never more than `budget`, unless that is below divisor^2, the smallest grid.
CellGrid fit_patches(PixelSize image, std::int64_t budget, const DynamicResolutionConfig& config);

// The patches of all images of a sample that has room for `embeddings`. They fit, unless min_patches of each image
// (or the smallest grids) already take more.
std::vector<CellGrid> fit_images(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                 const DynamicResolutionConfig& config);

struct TilingConfig {
  int tile = 512;  // pixels per side
  int max_tiles = 1;
  bool thumbnail = false;  // one more tile, the last, with the whole image; not if there is only one tile
};

CellGrid choose_tiles(PixelSize image, const TilingConfig& config);

// With the thumbnail.
std::int64_t tile_count(const CellGrid& tiles, const TilingConfig& config);

// The tiles of all images of a sample that has room for `embeddings`; each tile takes `embeddings_per_tile`. While
// they do not fit, max_tiles is lowered (to 8, 6, 4, 2, 1) for all images; with 1 the result is returned in any case.
std::vector<CellGrid> fit_tiles(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                std::int64_t embeddings_per_tile, TilingConfig config);

// Tile (column, row) of an image that was resized to whole tiles.
Image cut_tile(const Image& resized, int tile, int column, int row);

}  // namespace braid
