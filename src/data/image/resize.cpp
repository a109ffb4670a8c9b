#include "data/image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "data/image/resize_weights.h"

namespace braid {
namespace {

double bilinear(double x) { return std::max(1 - std::fabs(x), 0.0); }

// The cubic of Keys with a = -1/2, evaluated in Pillow's order: a different rounding would show in the weights.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

ResizeWeights weights_for(ResizeFilter filter, int inputs, int outputs) {
  return filter == ResizeFilter::Bicubic ? resize_weights(inputs, outputs, 2, bicubic)
                                         : resize_weights(inputs, outputs, 1, bilinear);
}

Image resize_columns(const Image& image, int height, ResizeFilter filter, const ResizeKernels& kernels) {
  Image result({image.size().width, height});
  kernels.vertical(image.row(0), image.row_bytes(), weights_for(filter, image.size().height, height), result.row(0));
  return result;
}

Image resize_rows(const Image& image, int width, ResizeFilter filter, const ResizeKernels& kernels) {
  const auto [from, height] = image.size();
  Image result({width, height});
  kernels.horizontal(image.row(0), from, height, weights_for(filter, from, width), result.row(0));
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

Image resize(const Image& image, PixelSize size, ResizeFilter filter, const ResizeKernels& kernels) {
  BRAID_CHECK(size.width > 0 && size.height > 0, "{} x {}", size.width, size.height);
  const PixelSize from = image.size();
  if (size == from) return copy_of(image);
  if (size.height == from.height) return resize_rows(image, size.width, filter, kernels);
  if (size.width == from.width) return resize_columns(image, size.height, filter, kernels);
  if (is_vertical_first(from, size))
    return resize_rows(resize_columns(image, size.height, filter, kernels), size.width, filter, kernels);
  return resize_columns(resize_rows(image, size.width, filter, kernels), size.height, filter, kernels);
}

Image resize(const Image& image, PixelSize size, ResizeFilter filter) {
  const std::vector<ResizeKernels> vector_kernels = vector_resize_kernels();
  return resize(image, size, filter, vector_kernels.empty() ? kPlainResize : vector_kernels.front());
}

}  // namespace braid
