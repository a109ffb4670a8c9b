#include "data/image/tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

// All grids of up to `max_tiles` tiles: those of fewer tiles first, then narrow before wide.
std::vector<CellGrid> grids_of(int max_tiles) {
  std::vector<CellGrid> grids;
  for (int columns = 1; columns <= max_tiles; ++columns)
    for (int rows = 1; columns * rows <= max_tiles; ++rows) grids.push_back({columns, rows});
  std::stable_sort(grids.begin(), grids.end(),
                   [](const CellGrid& a, const CellGrid& b) { return a.cells() < b.cells(); });
  return grids;
}

double aspect_of(int width, int height) { return static_cast<double>(width) / height; }

// Grids such as 1 x 1 and 2 x 2 have the same aspect: the larger is taken if the picture fills half of it.
CellGrid closest_aspect(PixelSize picture, double tile_area, const std::vector<CellGrid>& grids) {
  const double aspect = aspect_of(picture.width, picture.height);
  double least = std::numeric_limits<double>::infinity();
  CellGrid best = grids.front();
  for (const CellGrid& grid : grids) {
    const double difference = std::fabs(aspect - aspect_of(grid.columns, grid.rows));
    const double area = tile_area * static_cast<double>(grid.cells());
    if (difference < least || (difference == least && static_cast<double>(picture.pixels()) > 0.5 * area)) best = grid;
    least = std::min(least, difference);
  }
  return best;
}

int lowered(int max_tiles) {
  for (const int lower : {8, 6, 4, 2})
    if (lower < max_tiles) return lower;
  return 1;
}

}  // namespace

CellGrid choose_tiles(PixelSize picture, const TilingConfig& config) {
  BRAID_CHECK(config.max_tiles >= 1 && config.tile >= 1, "{} tiles of {}", config.max_tiles, config.tile);
  const std::vector<CellGrid> grids = grids_of(config.max_tiles);
  const double tile_area = static_cast<double>(config.tile) * config.tile;
  return closest_aspect(picture, tile_area, grids);
}

std::int64_t tile_count(const CellGrid& tiles, const TilingConfig& config) {
  return tiles.cells() + (config.thumbnail && tiles.cells() != 1 ? 1 : 0);
}

std::vector<CellGrid> fit_tiles(const std::vector<PixelSize>& pictures, std::int64_t embeddings,
                                std::int64_t embeddings_per_tile, TilingConfig config) {
  for (;; config.max_tiles = lowered(config.max_tiles)) {
    std::vector<CellGrid> grids;
    std::int64_t tiles = 0;
    for (const PixelSize& picture : pictures) {
      grids.push_back(choose_tiles(picture, config));
      tiles += tile_count(grids.back(), config);
    }
    if (tiles * embeddings_per_tile <= embeddings || config.max_tiles == 1) return grids;
  }
}

Image cut_tile(const Image& resized, int tile, int column, int row) {
  BRAID_CHECK((column + 1) * tile <= resized.size().width && (row + 1) * tile <= resized.size().height,
              "tile {}, {} of {} x {} pixels", column, row, resized.size().width, resized.size().height);
  Image result({tile, tile});
  for (int y = 0; y < tile; ++y)
    std::memcpy(result.row(y), resized.row(row * tile + y) + std::size_t{3} * column * tile, result.row_bytes());
  return result;
}

}  // namespace braid
