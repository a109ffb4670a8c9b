// A block writes one row (of a patch, a token or a table entry) at a time; its threads take turns at vectors of
// columns.
#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/vision.h"

namespace braid::kernels {
namespace {

constexpr int kThreads = 128;

template <int kWidth, class Visit>
__device__ void for_columns(std::int64_t columns, Visit visit) {
  for (std::int64_t column = threadIdx.x * kWidth; column < columns; column += kThreads * kWidth) visit(column);
}

template <int kWidth, class T>
__device__ void copy_row(const T* from, T* to, std::int64_t columns) {
  for_columns<kWidth>(columns, [&](std::int64_t column) { Vector<T, kWidth>::load(from + column).store(to + column); });
}

// The last image that begins at or before `token`, when each has `class_tokens` rows in front of its patches.
__device__ std::int64_t image_of(const Images& images, std::int64_t token, std::int64_t class_tokens) {
  std::int64_t low = 0, high = images.count - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (images.data[middle].first_patch + middle * class_tokens <= token)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

template <int kWidth, bool kJoin, class T>
__global__ void __launch_bounds__(kThreads)
    move_squares(Matrix<const T> from, Images images, T* to, std::int64_t width) {
  const std::int64_t patch = blockIdx.x;
  const ImageOnDevice image = images.data[image_of(images, patch, 0)];
  const std::int64_t row = (patch - image.first_patch) / image.columns,
                     column = (patch - image.first_patch) % image.columns;
  const std::int64_t token = image.first_patch / 4 + row / 2 * (image.columns / 2) + column / 2;
  const std::int64_t part = (row % 2 * 2 + column % 2) * width;
  if constexpr (kJoin)
    copy_row<kWidth>(from.data + patch * from.stride, to + token * 4 * width + part, width);
  else
    copy_row<kWidth>(from.data + token * from.stride + part, to + patch * width, width);
}

// Between which two samples of `side` a position lies when these are resized to `size`, and how far behind the first.
struct Between {
  std::int64_t before;
  float share;
};
__device__ Between between_samples(std::int64_t position, std::int64_t size, std::int64_t side) {
  const double scale = static_cast<double>(side) / static_cast<double>(size);
  const double source = fmax(0.0, (static_cast<double>(position) + 0.5) * scale - 0.5);
  const auto before = static_cast<std::int64_t>(source);
  if (before >= side - 1) return {side - 1, 0.f};
  return {before, static_cast<float>(source - static_cast<double>(before))};
}
// The weight of sample `sample` in that position.
__device__ float weight_of(std::int64_t sample, std::int64_t position, std::int64_t size, std::int64_t side) {
  const Between between = between_samples(position, size, side);
  return sample == between.before ? 1 - between.share : sample == between.before + 1 ? between.share : 0.f;
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) place(PlacePatches<T> place, Images images) {
  const std::int64_t token = blockIdx.x, columns = place.patches.columns, class_tokens = place.class_token.rows;
  const std::int64_t index = image_of(images, token, class_tokens);
  const ImageOnDevice image = images.data[index];
  const std::int64_t inside = token - image.first_patch - index * class_tokens, patch = inside - class_tokens;
  T* const to = place.tokens + token * columns;
  if (patch < 0) return copy_row<kWidth>(place.class_token.data + inside * place.class_token.stride, to, columns);

  const std::int64_t size = max(image.rows, image.columns), side = place.side, stride = place.table.stride;
  const Between row = between_samples(patch / image.columns, size, side);
  const Between column = between_samples(patch % image.columns, size, side);
  const std::int64_t down = row.share > 0 ? side * stride : 0, right = column.share > 0 ? stride : 0;
  const T* const corner = place.table.data + (row.before * side + column.before) * stride;
  const T* const from = place.patches.data + (image.first_patch + patch) * place.patches.stride;
  for_columns<kWidth>(columns, [&](std::int64_t c) {
    const auto values = Vector<T, kWidth>::load(from + c);
    const auto top_left = Vector<T, kWidth>::load(corner + c), top_right = Vector<T, kWidth>::load(corner + right + c);
    const auto low_left = Vector<T, kWidth>::load(corner + down + c);
    const auto low_right = Vector<T, kWidth>::load(corner + down + right + c);
    Vector<T, kWidth> sum;
    for (int i = 0; i < kWidth; ++i) {
      const float left = (1 - row.share) * to_float(top_left.values[i]) + row.share * to_float(low_left.values[i]);
      const float other = (1 - row.share) * to_float(top_right.values[i]) + row.share * to_float(low_right.values[i]);
      const T position = from_float<T>((1 - column.share) * left + column.share * other);
      sum.values[i] = from_float<T>(to_float(values.values[i]) + to_float(position));
    }
    sum.store(to + c);
  });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads)
    patches_backward(Matrix<const T> grad, Images images, std::int64_t class_tokens, T* patches_grad) {
  const std::int64_t patch = blockIdx.x, image = image_of(images, patch, 0);
  const std::int64_t token = patch + (image + 1) * class_tokens;
  copy_row<kWidth>(grad.data + token * grad.stride, patches_grad + patch * grad.columns, grad.columns);
}

// A range of positions outside which weight_of(sample, ...) is 0.
struct Range {
  std::int64_t begin, end;
};
__device__ Range positions_near(std::int64_t sample, std::int64_t count, std::int64_t size, std::int64_t side) {
  const double scale = static_cast<double>(size) / static_cast<double>(side);
  const auto begin = static_cast<std::int64_t>((static_cast<double>(sample) - 0.5) * scale - 0.5) - 1;
  const auto end = static_cast<std::int64_t>((static_cast<double>(sample) + 1.5) * scale - 0.5) + 2;
  return {max(begin, std::int64_t{0}), sample == side - 1 ? count : min(end, count)};
}

// A block sums one table entry's gradient over all patches near it, image by image.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) table_backward(PlacePatchesBackward<T> place, Images images) {
  const std::int64_t side = place.side, row = blockIdx.x / side, column = blockIdx.x % side;
  const Matrix<const T>& grad = place.grad;
  for_columns<kWidth>(grad.columns, [&](std::int64_t c) {
    float sums[kWidth] = {};
    for (std::int64_t index = 0; index < images.count; ++index) {
      const ImageOnDevice image = images.data[index];
      const std::int64_t size = max(image.rows, image.columns);
      const Range rows = positions_near(row, image.rows, size, side);
      const Range columns = positions_near(column, image.columns, size, side);
      const std::int64_t first = image.first_patch + (index + 1) * place.class_tokens;
      for (std::int64_t y = rows.begin; y < rows.end; ++y) {
        const float row_weight = weight_of(row, y, size, side);
        if (row_weight == 0) continue;
        for (std::int64_t x = columns.begin; x < columns.end; ++x) {
          const float weight = row_weight * weight_of(column, x, size, side);
          if (weight == 0) continue;
          const auto values = Vector<T, kWidth>::load(grad.data + (first + y * image.columns + x) * grad.stride + c);
          for (int i = 0; i < kWidth; ++i) sums[i] += weight * to_float(values.values[i]);
        }
      }
    }
    Vector<T, kWidth> result;
    for (int i = 0; i < kWidth; ++i) result.values[i] = from_float<T>(sums[i]);
    result.store(place.table_grad + blockIdx.x * grad.columns + c);
  });
}

// A block sums one class token's gradient over all images.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) class_backward(PlacePatchesBackward<T> place, Images images) {
  const Matrix<const T>& grad = place.grad;
  for_columns<kWidth>(grad.columns, [&](std::int64_t c) {
    float sums[kWidth] = {};
#pragma unroll 4
    for (std::int64_t index = 0; index < images.count; ++index) {
      const std::int64_t token = images.data[index].first_patch + index * place.class_tokens + blockIdx.x;
      const auto values = Vector<T, kWidth>::load(grad.data + token * grad.stride + c);
      for (int i = 0; i < kWidth; ++i) sums[i] += to_float(values.values[i]);
    }
    Vector<T, kWidth> result;
    for (int i = 0; i < kWidth; ++i) result.values[i] = from_float<T>(sums[i]);
    result.store(place.class_token_grad + blockIdx.x * grad.columns + c);
  });
}

}  // namespace

template <class T>
void join_squares(Matrix<const T> patches, const Images& images, T* tokens, cudaStream_t stream) {
  if (images.patches == 0) return;
  with_vector_width<T>(is_aligned(patches), patches.columns, [&](auto width) {
    move_squares<width(), true><<<images.patches, kThreads, 0, stream>>>(patches, images, tokens, patches.columns);
  });
}

template <class T>
void split_squares(Matrix<const T> tokens, const Images& images, T* patches, cudaStream_t stream) {
  if (images.patches == 0) return;
  with_vector_width<T>(is_aligned(tokens), tokens.columns / 4, [&](auto width) {
    move_squares<width(), false><<<images.patches, kThreads, 0, stream>>>(tokens, images, patches, tokens.columns / 4);
  });
}

template <class T>
void place_patches(const PlacePatches<T>& patches, const Images& images, cudaStream_t stream) {
  const std::int64_t tokens = images.patches + images.count * patches.class_token.rows;
  if (tokens == 0) return;
  const bool aligned = is_aligned(patches.patches) && is_aligned(patches.table) && is_aligned(patches.class_token);
  with_vector_width<T>(aligned, patches.patches.columns,
                       [&](auto width) { place<width()><<<tokens, kThreads, 0, stream>>>(patches, images); });
}

template <class T>
void place_patches_backward(const PlacePatchesBackward<T>& place, const Images& images, cudaStream_t stream) {
  const Matrix<const T>& grad = place.grad;
  with_vector_width<T>(is_aligned(grad), grad.columns, [&](auto width) {
    if (place.patches_grad && images.patches > 0)
      patches_backward<width()>
          <<<images.patches, kThreads, 0, stream>>>(grad, images, place.class_tokens, place.patches_grad);
    if (place.table_grad) table_backward<width()><<<place.side * place.side, kThreads, 0, stream>>>(place, images);
    if (place.class_token_grad && place.class_tokens > 0)
      class_backward<width()><<<place.class_tokens, kThreads, 0, stream>>>(place, images);
  });
}

#define BRAID_VISION(T)                                                             \
  template void join_squares(Matrix<const T>, const Images&, T*, cudaStream_t);     \
  template void split_squares(Matrix<const T>, const Images&, T*, cudaStream_t);    \
  template void place_patches(const PlacePatches<T>&, const Images&, cudaStream_t); \
  template void place_patches_backward(const PlacePatchesBackward<T>&, const Images&, cudaStream_t);
BRAID_VISION(float)
BRAID_VISION(__nv_bfloat16)
#undef BRAID_VISION

}  // namespace braid::kernels
