// Pillow's antialiased resizing of 8-bit pictures, with its exact results: weights in fixed point, a pass over the rows
// and one over the columns, each rounded to 8 bits.
#pragma once

#include "data/image/image.h"
#include "data/image/resize_kernels.h"

namespace braid {

enum class ResizeFilter { Bicubic, Bilinear };

// `size` has at least one pixel per side.
Image resize(const Image& image, PixelSize size, ResizeFilter filter);

// The same with given loops, for tests and measurements.
Image resize(const Image& image, PixelSize size, ResizeFilter filter, const ResizeKernels& kernels);

}  // namespace braid
