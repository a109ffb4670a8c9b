// The inner loops of resizing: a plain version, which is the reference, and versions for the vector units of
// processors. All give the same result.
#pragma once

#include <cstdint>
#include <vector>

namespace braid {

struct ResizeWeights;

// Pixels are RGB without gaps. Versions for vector units read and write up to Image::kSlack bytes past the end of a
// row; they write rows in order, so that each row repairs its beginning.
struct ResizeKernels {
  const char* name;
  // Resizes `rows` rows from `width` pixels to weights.outputs() pixels.
  void (*horizontal)(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to);
  // Resizes columns; a row has `row_bytes` bytes.
  void (*vertical)(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to);
};

extern const ResizeKernels kPlainResize;

// The vector versions that this processor can run, the fastest first; may be empty.
std::vector<ResizeKernels> vector_resize_kernels();

}  // namespace braid
