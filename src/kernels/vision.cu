// A block writes one row (of a patch, a token or a table entry) at a time; its threads take turns at vectors of
// columns.

#include "kernels/device.cuh"
#include "kernels/rows.h"

namespace braid::kernels {
namespace {

struct Images {
  const ImageOnDevice* data;
  std::int64_t count;

  explicit Images(const Tensor& table) : data(table), count(table.rows()) {}
};

constexpr int kThreads = 160;  // one vector each for the 1280 columns of RADIO-H

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
  wait_for_previous();
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

// Samples of a table's side and positions on an image's longer side, both from 0 to 1: position p is at (2p + 1) / 2
// size and sample s at (2s + 1) / 2 side, and outside of all samples the nearest one counts. Integers keep this exact.
struct Resizing {
  int size, side;

  __device__ Resizing(const ImageOnDevice& image, std::int64_t side)
      : size(static_cast<int>(max(image.rows, image.columns))), side(static_cast<int>(side)) {}
  __device__ int unit() const { return 2 * size; }  // between two samples
  // From the first sample.
  __device__ int place_of(int position) const {
    return min(max((2 * position + 1) * side - size, 0), (side - 1) * unit());
  }
};

// Between which two samples a position lies, and how far behind the first.
struct Between {
  std::int64_t before;
  float share;
};
__device__ Between between_samples(std::int64_t position, const Resizing& resizing) {
  const int place = resizing.place_of(static_cast<int>(position)), before = place / resizing.unit();
  return {before, static_cast<float>(place - before * resizing.unit()) / static_cast<float>(resizing.unit())};
}

template <class T>
struct PlacePatches {
  Matrix<const T> patches, table, class_token;
  std::int64_t side;
  T* tokens;
};

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) place(PlacePatches<T> place, Images images) {
  wait_for_previous();
  const std::int64_t token = blockIdx.x, columns = place.patches.columns, class_tokens = place.class_token.rows;
  const std::int64_t index = image_of(images, token, class_tokens);
  const ImageOnDevice image = images.data[index];
  const std::int64_t inside = token - image.first_patch - index * class_tokens, patch = inside - class_tokens;
  T* const to = place.tokens + token * columns;
  if (patch < 0) return copy_row<kWidth>(place.class_token.data + inside * place.class_token.stride, to, columns);

  const std::int64_t side = place.side, stride = place.table.stride;
  const Resizing resizing(image, side);
  const Between row = between_samples(patch / image.columns, resizing);
  const Between column = between_samples(patch % image.columns, resizing);
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
  wait_for_previous();
  const std::int64_t patch = blockIdx.x, image = image_of(images, patch, 0);
  const std::int64_t token = patch + (image + 1) * class_tokens;
  copy_row<kWidth>(grad.data + token * grad.stride, patches_grad + patch * grad.columns, grad.columns);
}

template <class T>
struct PlacePatchesBackward {
  Matrix<const T> grad;
  std::int64_t side, class_tokens;
  T *table_grad, *class_token_grad;
};

// The positions, of `count`, that a sample has a part in.
struct Range {
  int begin, end;
  __device__ int size() const { return max(end - begin, 0); }
};
__device__ Range positions_near(int sample, int count, const Resizing& resizing) {
  const auto [size, side] = resizing;
  const int above = (2 * sample - 1) * size - side, below = (2 * sample + 3) * size - side;  // of 2 * side
  return {sample == 0 || above < 0 ? 0 : above / (2 * side) + 1,
          sample == side - 1 ? count : min(count, (below + 2 * side - 1) / (2 * side))};
}
__device__ float weight_of(int sample, int position, const Resizing& resizing) {
  const int away = abs(resizing.place_of(position) - sample * resizing.unit());
  return static_cast<float>(resizing.unit() - away) / static_cast<float>(resizing.unit());
}

// Patches near a table entry, of up to kWarp images, image by image and row by row.
struct NearPatches {
  struct {
    Range rows, columns;
    int first;  // among all
  } images[kWarp];
  int count;

  // Each lane of a warp enters one image.
  __device__ void find(const ImageOnDevice* of, int images_here, int row, int column, int side) {
    const int lane = threadIdx.x;
    Range rows{}, columns{};
    if (lane < images_here) {
      const Resizing resizing(of[lane], side);
      rows = positions_near(row, static_cast<int>(of[lane].rows), resizing);
      columns = positions_near(column, static_cast<int>(of[lane].columns), resizing);
    }
    const int own = rows.size() * columns.size();
    int end = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += before;
    }
    images[lane] = {rows, columns, end - own};
    if (lane == kWarp - 1) count = end;
  }
};

// A block sums one table entry's gradient over all patches near it, and has one vector per thread. Up to kWarp images
// and kThreads patches at a time, each thread finds out about one of them for all.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) table_backward(PlacePatchesBackward<T> place, Images images) {
  wait_for_previous();
  __shared__ NearPatches near;
  __shared__ std::int64_t tokens[kThreads];
  __shared__ float weights[kThreads];
  const int side = static_cast<int>(place.side), row = blockIdx.x / side, column = blockIdx.x % side;
  const Matrix<const T>& grad = place.grad;
  const std::int64_t c = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  float sums[kWidth] = {};
  for (std::int64_t first_image = 0; first_image < images.count; first_image += kWarp) {
    const ImageOnDevice* const here = images.data + first_image;
    const int images_here = static_cast<int>(min(images.count - first_image, std::int64_t{kWarp}));
    if (threadIdx.x < kWarp) near.find(here, images_here, row, column, side);
    __syncthreads();
    for (int first = 0; first < near.count; first += kThreads) {
      const int count = min(near.count - first, kThreads), patch = first + threadIdx.x;
      if (patch < near.count) {
        int index = images_here - 1;
        while (near.images[index].first > patch) --index;
        const auto& [rows, columns, first_patch] = near.images[index];
        const ImageOnDevice image = here[index];
        const Resizing resizing(image, side);
        const int y = rows.begin + (patch - first_patch) / columns.size();
        const int x = columns.begin + (patch - first_patch) % columns.size();
        tokens[threadIdx.x] =
            image.first_patch + (first_image + index + 1) * place.class_tokens + y * image.columns + x;
        weights[threadIdx.x] = weight_of(row, y, resizing) * weight_of(column, x, resizing);
      }
      __syncthreads();
      if (c < grad.columns) {
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
          const auto values = Vector<T, kWidth>::load(grad.data + tokens[i] * grad.stride + c);
          for (int k = 0; k < kWidth; ++k) sums[k] += weights[i] * to_float(values.values[k]);
        }
      }
      __syncthreads();
    }
    __syncthreads();
  }
  if (c >= grad.columns) return;
  Vector<T, kWidth> result;
  for (int i = 0; i < kWidth; ++i) result.values[i] = from_float<T>(sums[i]);
  result.store(place.table_grad + blockIdx.x * grad.columns + c);
}

// A block sums one class token's gradient over all images.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) class_backward(PlacePatchesBackward<T> place, Images images) {
  wait_for_previous();
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

void join_squares(const Tensor& patches, const Tensor& images, const Tensor& tokens, const Queue& queue) {
  with_vectors(patches.columns(), {patches}, [&]<class T, int kWidth>() {
    launch_kernel(move_squares<kWidth, true, T>, {patches.rows(), kThreads, 0, queue}, patches, images, tokens,
                  patches.columns());
  });
}

void split_squares(const Tensor& tokens, const Tensor& images, const Tensor& patches, const Queue& queue) {
  with_vectors(patches.columns(), {tokens}, [&]<class T, int kWidth>() {
    launch_kernel(move_squares<kWidth, false, T>, {patches.rows(), kThreads, 0, queue}, tokens, images, patches,
                  patches.columns());
  });
}

void place_patches(const Tensor& patches, const Tensor& table, std::int64_t side, const Tensor& class_token,
                   const Tensor& images, const Tensor& tokens, const Queue& queue) {
  with_vectors(patches.columns(), {patches, table, class_token}, [&]<class T, int kWidth>() {
    launch_kernel(place<kWidth, T>, {tokens.rows(), kThreads, 0, queue},
                  PlacePatches<T>{patches, table, class_token, side, tokens}, images);
  });
}

void place_patches_backward(const Tensor& grad, std::int64_t side, std::int64_t class_tokens, const Tensor& images,
                            const Tensor& patches_grad, const Tensor& table_grad, const Tensor& class_token_grad,
                            const Queue& queue) {
  with_vectors(grad.columns(), {grad}, [&]<class T, int kWidth>() {
    const PlacePatchesBackward<T> place = {grad, side, class_tokens, table_grad, class_token_grad};
    if (patches_grad.data)
      launch_kernel(patches_backward<kWidth, T>, {patches_grad.rows(), kThreads, 0, queue}, grad, images, class_tokens,
                    patches_grad);
    if (table_grad.data)
      launch_kernel(table_backward<kWidth, T>,
                    {dim3(side * side, blocks_for(grad.columns(), kThreads * kWidth)), kThreads, 0, queue}, place,
                    images);
    if (class_token_grad.data)
      launch_kernel(class_backward<kWidth, T>, {class_tokens, kThreads, 0, queue}, place, images);
  });
}

}  // namespace braid::kernels
