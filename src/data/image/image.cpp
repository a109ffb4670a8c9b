// The inner loops of resizing are written with the compilers' vector types. The compiler makes a version for each of
// the listed instruction sets, and the fastest that the processor has is chosen when the program starts.
#include "data/image/image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

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

// Four neighbouring pixels of kRows rows are multiplied at once: lane 4 * pixel + channel; the lanes of the fourth
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

// The first result is rounded to 8 bits, so the order shows in the pixels. Pillow 13 begins with the columns if that
// removes many rows; earlier versions always begin with the rows.
bool is_vertical_first(PixelSize from, PixelSize to) {
  return to.height < from.height && from.height - to.height > 2 * (from.width - to.width);
}

Image copy_of(const Image& image) {
  Image copy(image.size());
  std::memcpy(copy.pixels().data(), image.pixels().data(), image.byte_count());
  return copy;
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
  if (size == from) return copy_of(image);
  if (size.height == from.height) return with_width(image, size.width, filter);
  if (size.width == from.width) return with_height(image, size.height, filter);
  if (is_vertical_first(from, size)) return with_width(with_height(image, size.height, filter), size.width, filter);
  return with_height(with_width(image, size.width, filter), size.height, filter);
}

}  // namespace braid
