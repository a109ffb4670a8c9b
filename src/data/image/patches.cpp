#include "data/image/patches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
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

// Grids such as 1 x 1 and 2 x 2 have the same aspect: the larger is taken if the image fills half of it.
CellGrid closest_aspect(PixelSize image, double tile_area, const std::vector<CellGrid>& grids) {
  const double aspect = aspect_of(image.width, image.height);
  double least = std::numeric_limits<double>::infinity();
  CellGrid best = grids.front();
  for (const CellGrid& grid : grids) {
    const double difference = std::fabs(aspect - aspect_of(grid.columns, grid.rows));
    const double area = tile_area * static_cast<double>(grid.cells());
    if (difference < least || (difference == least && static_cast<double>(image.pixels()) > 0.5 * area)) best = grid;
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

CellGrid choose_tiles(PixelSize image, const TilingConfig& config) {
  BRAID_CHECK(config.max_tiles >= 1 && config.tile >= 1, "{} tiles of {}", config.max_tiles, config.tile);
  const std::vector<CellGrid> grids = grids_of(config.max_tiles);
  const double tile_area = static_cast<double>(config.tile) * config.tile;
  return closest_aspect(image, tile_area, grids);
}

std::int64_t tile_count(const CellGrid& tiles, const TilingConfig& config) {
  return tiles.cells() + (config.thumbnail && tiles.cells() != 1 ? 1 : 0);
}

std::vector<CellGrid> fit_tiles(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                std::int64_t embeddings_per_tile, TilingConfig config) {
  for (;; config.max_tiles = lowered(config.max_tiles)) {
    std::vector<CellGrid> grids;
    std::int64_t tiles = 0;
    for (const PixelSize& image : images) {
      grids.push_back(choose_tiles(image, config));
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
