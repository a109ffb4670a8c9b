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

// The steps of dynamic resolution are those of the public multimodal training example of Megatron-LM, including their
// rounding.

// In patches. Doubles, because the steps scale by real factors.
struct Sides {
  double width, height;
  double patches() const { return width * height; }
};

// Half a patch more, rounded half to even: an odd multiple of the patch gains a patch, an even one does not.
double patches_along(int pixels, int patch) { return std::nearbyint(static_cast<double>(pixels) / patch + 0.5); }

Sides shrunk(Sides sides, double factor) {
  return {std::floor(factor * sides.width), std::floor(factor * sides.height)};
}
Sides enlarged(Sides sides, double factor) {
  return {std::ceil(factor * sides.width), std::ceil(factor * sides.height)};
}

// Enlarges an image until its shorter side reaches min_side. If the result exceeds the budget, the other side gets
// what is left; if that makes the other side too short instead, the image keeps its aspect. The reference keeps the
// aspect of wide images only; we do the same, unless a tall one would then exceed the budget.
Sides with_min_side(Sides sides, double budget, const DynamicResolutionConfig& config) {
  const bool is_tall = sides.width <= sides.height;
  const double shorter = std::min(sides.width, sides.height);
  const Sides wanted = enlarged(sides, config.min_side / (shorter * config.patch));
  if (wanted.patches() <= budget) return wanted;
  const double reached = is_tall ? wanted.width : wanted.height;
  const double rest = std::max(std::floor(budget / reached), 1.0);
  const bool keeps_aspect = is_tall ? reached > budget : rest * config.patch < config.min_side;
  if (keeps_aspect) return shrunk(sides, std::sqrt(budget / sides.patches()));
  return is_tall ? Sides{reached, rest} : Sides{rest, reached};
}

// `side` as a multiple of the divisor: rounded up if the budget allows it, else down.
double divisible(double side, double other, double divisor, double budget) {
  const double excess = std::fmod(side, divisor);
  if (excess == 0) return std::max(side, divisor);
  const double up = side - excess + divisor;
  return std::max(up * other <= budget ? up : side - excess, divisor);
}

// Rounding a side up to the divisor can exceed the budget if the image is very long or the budget is small.
Sides within_budget(Sides sides, double divisor, double budget) {
  double& longer = sides.width > sides.height ? sides.width : sides.height;
  double& shorter = sides.width > sides.height ? sides.height : sides.width;
  const auto fitting = [&](double other) { return std::max(std::floor(budget / other / divisor) * divisor, divisor); };
  if (sides.patches() > budget) longer = std::min(longer, fitting(shorter));
  if (sides.patches() > budget) shorter = std::min(shorter, fitting(longer));
  return sides;
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

CellGrid fit_patches(PixelSize image, std::int64_t budget, const DynamicResolutionConfig& config) {
  const double limit = static_cast<double>(budget);
  Sides sides = {patches_along(image.width, config.patch), patches_along(image.height, config.patch)};
  sides = shrunk(sides, std::min(std::sqrt(limit / sides.patches()), 1.0));
  sides = {std::max(sides.width, 1.0), std::max(sides.height, 1.0)};
  if (budget > config.min_patches && sides.patches() < static_cast<double>(config.min_patches))
    sides = enlarged(sides, std::sqrt(static_cast<double>(config.min_patches) / sides.patches()));
  if (std::min(sides.width, sides.height) * config.patch < config.min_side) sides = with_min_side(sides, limit, config);
  sides.height = divisible(sides.height, sides.width, config.divisor, limit);
  sides.width = divisible(sides.width, sides.height, config.divisor, limit);
  sides = within_budget(sides, config.divisor, limit);
  return {static_cast<int>(sides.width), static_cast<int>(sides.height)};
}

std::vector<CellGrid> fit_images(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                 const DynamicResolutionConfig& config) {
  constexpr int kRounds = 10;
  const std::int64_t count = static_cast<std::int64_t>(images.size());
  const std::int64_t room =
      std::max(std::max<std::int64_t>(embeddings, 0) * config.divisor * config.divisor, config.min_patches * count);
  const std::int64_t most = config.max_patches > 0 ? config.max_patches : std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> budgets(images.size(), std::max(std::min(room, most), config.min_patches));
  std::vector<CellGrid> grids(images.size());
  for (int round = 1;; ++round) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      grids[i] = fit_patches(images[i], budgets[i], config);
      total += grids[i].cells();
    }
    if (total <= room || round == kRounds) return grids;
    bool has_shrunk = false;
    const double share = static_cast<double>(room) / static_cast<double>(total);
    for (std::size_t i = 0; i < images.size(); ++i) {
      const auto scaled = static_cast<std::int64_t>(static_cast<double>(grids[i].cells()) * share);
      const std::int64_t budget = std::max(config.min_patches, scaled);
      has_shrunk |= budget < budgets[i];
      budgets[i] = budget;
    }
    if (!has_shrunk) std::fill(budgets.begin(), budgets.end(), config.min_patches);
  }
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
