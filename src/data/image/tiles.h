// Fixed tiling: a picture is resized to a grid of square tiles of about its aspect, and cut.
#pragma once

#include <vector>

#include "data/image/patches.h"

namespace braid {

struct TilingConfig {
  int tile = 512;  // pixels per side
  int max_tiles = 1;
  bool thumbnail = false;  // one more tile, the last, with the whole picture; not if there is only one tile
};

CellGrid choose_tiles(PixelSize picture, const TilingConfig& config);

// With the thumbnail.
std::int64_t tile_count(const CellGrid& tiles, const TilingConfig& config);

// The tiles of all pictures of a sample that has room for `embeddings`; each tile takes `embeddings_per_tile`. While
// they do not fit, max_tiles is lowered (to 8, 6, 4, 2, 1) for all pictures; with 1 the result is returned in any case.
std::vector<CellGrid> fit_tiles(const std::vector<PixelSize>& pictures, std::int64_t embeddings,
                                std::int64_t embeddings_per_tile, TilingConfig config);

// Tile (column, row) of a picture that was resized to whole tiles.
Image cut_tile(const Image& resized, int tile, int column, int row);

}  // namespace braid
