// The inner loops of resizing are written with the compilers' vector types. The compiler makes a version of them for
// each of the listed instruction sets, and the fastest that the processor has is chosen when the program starts.
#include "data/image/image.h"
#include <new>
#include <sys/mman.h>
#include "base/error.h"

#ifdef __x86_64__
#define BRAID_FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BRAID_FOR_EACH_PROCESSOR
#endif

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

constexpr int kHalf = 1 << (kWeightBits - 1);
constexpr int kRows = 4;  // that share the loading of weights

using Four = std::int32_t __attribute__((vector_size(16)));
using Eight = std::int32_t __attribute__((vector_size(32)));
using Sixteen = std::int32_t __attribute__((vector_size(64)));
using FourBytes = std::uint8_t __attribute__((vector_size(4)));
using SixteenBytes = std::uint8_t __attribute__((vector_size(16)));

double bilinear(double x) { return std::max(1 - std::fabs(x), 0.0); }

// The cubic of Keys with a = -1/2, evaluated in Pillow's order: a different rounding would show in the weights.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// Four neighbouring pixels of kRows rows are multiplied at once: element 4 * pixel + channel; those of the fourth
// channel are not used. Reads up to 16 bytes after the last pixel.
BRAID_FOR_EACH_PROCESSOR void resize_rows(const std::uint8_t* const (&from)[kRows], const ResizeWeights& weights,
                                          std::uint8_t* const (&to)[kRows]) {
  for (int x = 0; x < weights.outputs(); ++x) {
    const auto [first, count] = weights.windows[x];
    Sixteen sums[kRows] = {};
    for (int k = 0; k < count; k += 4) {
      Four four;
      std::memcpy(&four, weights.of(x) + k, sizeof four);
      const Sixteen factors = __builtin_shufflevector(four, four, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      for (int row = 0; row < kRows; ++row) {
        SixteenBytes bytes;
        std::memcpy(&bytes, from[row] + std::ptrdiff_t{3} * (first + k), sizeof bytes);
        bytes = __builtin_shufflevector(bytes, bytes, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
        sums[row] += __builtin_convertvector(bytes, Sixteen) * factors;
      }
    }
    for (int row = 0; row < kRows; ++row) {
      const Eight halves = __builtin_shufflevector(sums[row], sums[row], 0, 1, 2, 3, 4, 5, 6, 7) +
                           __builtin_shufflevector(sums[row], sums[row], 8, 9, 10, 11, 12, 13, 14, 15);
      Four pixel = (__builtin_shufflevector(halves, halves, 0, 1, 2, 3) +
                    __builtin_shufflevector(halves, halves, 4, 5, 6, 7) + kHalf) >>
                   kWeightBits;
      pixel = pixel < 0 ? Four{} : pixel;
      pixel = pixel > 255 ? Four{} + 255 : pixel;
      const FourBytes bytes = __builtin_convertvector(pixel, FourBytes);
      std::memcpy(to[row] + std::ptrdiff_t{3} * x, &bytes, 3);
    }
  }
}

// One row of the result from `count` rows. Reads and writes up to 31 bytes after the end of a row.
BRAID_FOR_EACH_PROCESSOR void mix_rows(const std::uint8_t* rows, std::size_t row_bytes, const std::int32_t* weights,
                                       int count, std::uint8_t* to) {
  for (std::size_t x = 0; x < row_bytes; x += 32) {
    Sixteen sums[2] = {Sixteen{} + kHalf, Sixteen{} + kHalf};
    const std::uint8_t* at = rows + x;
    for (int k = 0; k < count; ++k, at += row_bytes)
      for (int half = 0; half < 2; ++half) {
        SixteenBytes bytes;
        std::memcpy(&bytes, at + 16 * half, sizeof bytes);
        sums[half] += __builtin_convertvector(bytes, Sixteen) * weights[k];
      }
    for (int half = 0; half < 2; ++half) {
      Sixteen levels = sums[half] >> kWeightBits;
      levels = levels < 0 ? Sixteen{} : levels;
      levels = levels > 255 ? Sixteen{} + 255 : levels;
      const SixteenBytes bytes = __builtin_convertvector(levels, SixteenBytes);
      std::memcpy(to + x + 16 * half, &bytes, sizeof bytes);
    }
  }
}

Image with_width(const Image& image, int width, ResizeFilter filter) {
  const auto [inputs, height] = image.size();
  const ResizeWeights weights = resize_weights(filter, inputs, width);
  Image result({width, height});
  for (int y = 0; y < height; y += kRows) {
    const std::uint8_t* from[kRows];
    std::uint8_t* to[kRows];
    for (int row = 0; row < kRows; ++row) {  // the last row several times if there are no more
      from[row] = image.row(std::min(y + row, height - 1));
      to[row] = result.row(std::min(y + row, height - 1));
    }
    resize_rows(from, weights, to);
  }
  return result;
}

// Rows are written in order, so that each repairs the beginning that the row before it has overwritten.
Image with_height(const Image& image, int height, ResizeFilter filter) {
  const ResizeWeights weights = resize_weights(filter, image.size().height, height);
  Image result({image.size().width, height});
  for (int y = 0; y < height; ++y) {
    const auto [first, count] = weights.windows[y];
    mix_rows(image.row(first), image.row_bytes(), weights.of(y), count, result.row(y));
  }
  return result;
}

// --- patches and tiles

// `patch` may be a constant, for which the compiler makes faster code.
template <class Side>
inline void split_channels(const std::uint8_t* __restrict from, std::size_t row_bytes, Side patch,
                           std::uint8_t* __restrict to) {
  const std::size_t channel = static_cast<std::size_t>(patch) * patch;
  for (int y = 0; y < patch; ++y, from += row_bytes, to += patch)
    for (int x = 0; x < patch; ++x)
      for (std::size_t c = 0; c < 3; ++c) to[c * channel + x] = from[3 * x + c];
}

// Plain x86-64 has no instruction that helps to take every third byte.
BRAID_FOR_EACH_PROCESSOR void cut_patch(const std::uint8_t* from, std::size_t row_bytes, int patch, std::uint8_t* to) {
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

// The steps of dynamic resolution are those of the public multimodal training example of Megatron-LM, including their
// rounding.

// The sides of an image in patches: doubles, because the steps scale by real factors.
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

// Shrinks an image until its longer side has at most max_side, in a multiple of the divisor.
Sides with_max_side(Sides sides, const DynamicResolutionConfig& config) {
  const double most = std::max(config.max_side / (config.patch * config.divisor), 1) * config.divisor;
  const double longer = std::max(sides.width, sides.height);
  if (longer <= most) return sides;
  const auto scaled = [&](double side) {
    return std::max(std::floor(side * most / longer / config.divisor), 1.0) * config.divisor;
  };
  return {scaled(sides.width), scaled(sides.height)};
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

ResizeWeights resize_weights(ResizeFilter filter, int inputs, int outputs) {
  const bool is_bicubic = filter == ResizeFilter::Bicubic;
  const double scale = static_cast<double>(inputs) / outputs;
  const double filter_scale = std::max(scale, 1.0);  // a filter as wide as an output pixel: no aliases
  const double reach = (is_bicubic ? 2 : 1) * filter_scale;
  ResizeWeights weights;
  weights.stride = (std::min(static_cast<int>(std::ceil(reach)) * 2 + 1, inputs) + 3) / 4 * 4;
  weights.values.resize(static_cast<std::size_t>(outputs) * weights.stride);
  std::vector<double> window(weights.stride);
  for (int i = 0; i < outputs; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), 0);
    const int count = std::min(static_cast<int>(centre + reach + 0.5), inputs) - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      const double distance = (k + first - centre + 0.5) * (1.0 / filter_scale);
      window[k] = is_bicubic ? bicubic(distance) : bilinear(distance);
      sum += window[k];
    }
    std::int32_t* values = weights.values.data() + std::int64_t{i} * weights.stride;
    for (int k = 0; k < count; ++k) {
      const double weight = sum != 0 ? window[k] / sum : 0;
      values[k] = static_cast<std::int32_t>(weight * (1 << kWeightBits) + (weight < 0 ? -0.5 : 0.5));
    }
    weights.windows.push_back({first, count});
  }
  return weights;
}

Image resize(const Image& image, PixelSize size, ResizeFilter filter) {
  BRAID_CHECK(size.width > 0 && size.height > 0, "{} x {}", size.width, size.height);
  const PixelSize from = image.size();
  if (size == from) {
    Image copy(size);
    std::memcpy(copy.pixels().data(), image.pixels().data(), image.byte_count());
    return copy;
  }
  if (size.height == from.height) return with_width(image, size.width, filter);
  if (size.width == from.width) return with_height(image, size.height, filter);
  // The first result is rounded to 8 bits, so the order shows in the pixels. Pillow 13 begins with the columns if that
  // removes many rows; earlier versions always begin with the rows.
  if (size.height < from.height && from.height - size.height > 2 * (from.width - size.width))
    return with_width(with_height(image, size.height, filter), size.width, filter);
  return with_height(with_width(image, size.width, filter), size.height, filter);
}

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

CellGrid fit_patches(PixelSize image, std::int64_t budget, const DynamicResolutionConfig& config) {
  const double limit = static_cast<double>(budget);
  Sides sides = {patches_along(image.width, config.patch), patches_along(image.height, config.patch)};
  sides = shrunk(sides, std::min(std::sqrt(limit / sides.patches()), 1.0));
  sides = {std::max(sides.width, 1.0), std::max(sides.height, 1.0)};
  if (budget > config.min_patches && sides.patches() < static_cast<double>(config.min_patches))
    sides = enlarged(sides, std::sqrt(static_cast<double>(config.min_patches) / sides.patches()));
  if (std::min(sides.width, sides.height) * config.patch < config.min_side) sides = with_min_side(sides, limit, config);
  if (config.max_side > 0) sides = with_max_side(sides, config);
  sides.height = divisible(sides.height, sides.width, config.divisor, limit);
  sides.width = divisible(sides.width, sides.height, config.divisor, limit);
  sides = within_budget(sides, config.divisor, limit);
  if (config.max_side > 0) sides = with_max_side(sides, config);
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
  const auto aspect_of = [](int width, int height) { return static_cast<double>(width) / height; };
  const double aspect = aspect_of(image.width, image.height),
               tile_area = static_cast<double>(config.tile) * config.tile;
  double least = std::numeric_limits<double>::infinity();
  CellGrid best = {1, 1};
  // Grids such as 1 x 1 and 2 x 2 have the same aspect: the larger is taken if the image fills half of it.
  for (const CellGrid& grid : grids_of(config.max_tiles)) {
    const double difference = std::fabs(aspect - aspect_of(grid.columns, grid.rows));
    const double area = tile_area * static_cast<double>(grid.cells());
    if (difference < least || (difference == least && static_cast<double>(image.pixels()) > 0.5 * area)) best = grid;
    least = std::min(least, difference);
  }
  return best;
}

std::vector<CellGrid> fit_tiles(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                std::int64_t embeddings_per_tile, TilingConfig config) {
  std::vector<CellGrid> grids;
  for (const int most : {config.max_tiles, 8, 6, 4, 2, 1}) {
    config.max_tiles = std::min(config.max_tiles, most);
    grids.clear();
    std::int64_t tiles = 0;
    for (const PixelSize& image : images) {
      grids.push_back(choose_tiles(image, config));
      tiles += tile_count(grids.back(), config);
    }
    if (tiles * embeddings_per_tile <= embeddings) break;
  }
  return grids;
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
