#include <cub/device/device_radix_sort.cuh>

#include "kernels/device.cuh"
#include "kernels/embedding.h"

namespace braid::kernels {

namespace {

constexpr int kThreads = 256;

// Where a row is; null: all its elements are `other`.
template <class T>
struct Source {
  const T* row;
  T other;
};

// A warp per row, so that its source is found once.
template <int kWidth, class T, class Find>
__global__ void __launch_bounds__(kThreads) copy_rows(Find find, Matrix<T> y) {
  wait_for_previous();
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= y.rows) return;
  const Source<T> source = find(row);
#pragma unroll 4
  for (std::int64_t column = threadIdx.x % kWarp * kWidth; column < y.columns; column += kWarp * kWidth) {
    Vector<T, kWidth> vector;
    if (source.row != nullptr)
      vector = Vector<T, kWidth>::load(source.row + column);
    else
      for (T& value : vector.values) value = source.other;
    vector.store(y.data + row * y.stride + column);
  }
}

template <class T, class Find>
void launch_copy_rows(bool aligned, const Find& find, const Matrix<T>& y, cudaStream_t stream) {
  if (y.rows == 0) return;
  with_vector_width<T>(aligned && is_aligned(y), y.columns, [&](auto width) {
    launch_kernel(copy_rows<width(), T, Find>, {blocks_for(y.rows, kThreads / kWarp), kThreads, 0, stream}, find, y);
  });
}

__global__ void __launch_bounds__(kThreads)
    find_rows(Ids ids, std::int64_t rows, std::uint32_t* row_of, std::uint32_t* tokens) {
  wait_for_previous();
  const std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= ids.count) return;
  const std::int64_t row = ids.data[token] - ids.first;
  row_of[token] = row >= 0 && row < rows ? row : rows;
  tokens[token] = token;
}

// The sums over tokens. The sorted tokens are cut into pieces, and a block of threads adds those of one piece in a
// slice of the columns. Of a row whose tokens are all in one piece, the block adds the result to the sum. A row that
// goes on over several pieces has a partial sum in each: number 2 p + 1 for the piece p in which the row begins, 2 p
// for the others. A second kernel adds them in order; so the many equal ids of an image do not wait for each other.
constexpr int kPiece = 32, kAtOnce = 8, kSumThreads = 128;

template <class T, class Sum>
struct RowSums {
  Matrix<const T> grad;  // [tokens, columns]
  const std::uint32_t *rows, *tokens;
  Matrix<Sum> sum;
  float* partial;

  __device__ std::int64_t count() const { return grad.rows; }
  // Whether the sorted tokens p - 1 and p belong to one row.
  __device__ bool is_joined(std::int64_t p) const { return p > 0 && p < count() && rows[p - 1] == rows[p]; }
};

template <int kWidth, class Sum>
__device__ void add_to(Sum* place, const float (&values)[kWidth]) {
  auto vector = Vector<Sum, kWidth>::load(place);
  for (int k = 0; k < kWidth; ++k) vector.values[k] = from_float<Sum>(to_float(vector.values[k]) + values[k]);
  vector.store(place);
}

template <int kWidth>
__device__ void put(float* place, const float (&values)[kWidth]) {
  Vector<float, kWidth> vector;
  for (int k = 0; k < kWidth; ++k) vector.values[k] = values[k];
  vector.store(place);
}

template <int kWidth, class T, class Sum>
__global__ void __launch_bounds__(kSumThreads) sum_pieces(RowSums<T, Sum> all) {
  wait_for_previous();
  const std::int64_t piece = blockIdx.x, begin = piece * kPiece, end = min(begin + kPiece, all.count());
  const std::int64_t column = (std::int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kWidth;
  if (column >= all.sum.columns) return;
  bool began_before = all.is_joined(begin);
  float sums[kWidth] = {};
  for (std::int64_t first = begin; first < end; first += kAtOnce) {
    Vector<T, kWidth> loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < end)
        loaded[i] = Vector<T, kWidth>::load(all.grad.data + all.tokens[first + i] * all.grad.stride + column);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t p = first + i;
      if (p >= end || all.rows[p] >= all.sum.rows) return;
      for (int k = 0; k < kWidth; ++k) sums[k] += to_float(loaded[i].values[k]);
      const bool goes_on = all.is_joined(p + 1);
      if (goes_on && p + 1 < end) continue;
      if (began_before || goes_on)
        put(all.partial + (2 * piece + (began_before ? 0 : 1)) * all.sum.columns + column, sums);
      else
        add_to(all.sum.data + all.rows[p] * all.sum.stride + column, sums);
      began_before = false;
      for (float& sum : sums) sum = 0;
    }
  }
}

// The first sorted token after `from` that does not belong to its row.
template <class T, class Sum>
__device__ std::int64_t end_of_row(const RowSums<T, Sum>& all, std::int64_t from) {
  std::int64_t low = from + 1, high = all.count();
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (all.rows[middle] == all.rows[from])
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

template <int kWidth, class T, class Sum>
__global__ void __launch_bounds__(kSumThreads) join_pieces(RowSums<T, Sum> all) {
  wait_for_previous();
  const std::int64_t piece = blockIdx.x, begin = piece * kPiece, last = begin + kPiece - 1;
  const std::int64_t column = (std::int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kWidth;
  if (column >= all.sum.columns || !all.is_joined(last + 1) || all.rows[last] >= all.sum.rows) return;
  if (all.is_joined(begin) && all.rows[begin] == all.rows[last]) return;  // an earlier piece begins this row
  const std::int64_t end = blocks_for(end_of_row(all, last), kPiece);
  const float* partial = all.partial + column;
  float sums[kWidth];
  const auto load = [&](std::int64_t number) {
    return Vector<float, kWidth>::load(partial + number * all.sum.columns);
  };
  const auto first = load(2 * piece + 1);
  for (int k = 0; k < kWidth; ++k) sums[k] = first.values[k];
#pragma unroll 8
  for (std::int64_t p = piece + 1; p < end; ++p) {
    const auto part = load(2 * p);
    for (int k = 0; k < kWidth; ++k) sums[k] += part.values[k];
  }
  add_to(all.sum.data + all.rows[last] * all.sum.stride + column, sums);
}

template <int kWidth, class T, class Sum>
void launch_sums(const RowSums<T, Sum>& all, cudaStream_t stream) {
  const dim3 grid(blocks_for(all.grad.rows, kPiece), blocks_for(all.sum.columns, kSumThreads * kWidth));
  if (grid.x == 0 || grid.y == 0) return;
  launch_kernel(sum_pieces<kWidth, T, Sum>, {grid, kSumThreads, 0, stream}, all);
  launch_kernel(join_pieces<kWidth, T, Sum>, {grid, kSumThreads, 0, stream}, all);
}

std::size_t sort(void* scratch, std::size_t bytes, const std::uint32_t* rows, const std::uint32_t* tokens,
                 const TokensByRow& sorted, std::int64_t count, int bits, cudaStream_t stream) {
  cub::DeviceRadixSort::SortPairs(scratch, bytes, rows, sorted.rows, tokens, sorted.tokens, count, 0, bits, stream);
  return bytes;
}

constexpr int kMostBits = 32;

}  // namespace

template <class T>
void embedding_forward(const Ids& ids, const Matrix<const T>& weight, const Matrix<T>& y, cudaStream_t stream) {
  const auto find = [=] __device__(std::int64_t token) -> Source<T> {
    const std::int64_t id = ids.data[token], row = id - ids.first;
    if (row >= 0 && row < weight.rows) return {weight.data + row * weight.stride, T()};
    return {nullptr, from_float<T>(id < 0 || id >= ids.vocabulary ? nanf("") : 0.f)};
  };
  launch_copy_rows(is_aligned(weight), find, y, stream);
}

template <class T>
void pick_rows(const std::int64_t* numbers, const Matrix<const T>& there, const Matrix<const T>& elsewhere,
               const Matrix<T>& y, cudaStream_t stream) {
  const auto find = [=] __device__(std::int64_t row) -> Source<T> {
    const std::int64_t number = numbers[row];
    const Matrix<const T>& from = number < 0 ? elsewhere : there;
    return {from.data == nullptr ? nullptr : from.data + (number < 0 ? row : number) * from.stride, from_float<T>(0)};
  };
  launch_copy_rows(is_aligned(there) && is_aligned(elsewhere), find, y, stream);
}

std::size_t sort_scratch_bytes(std::int64_t count) {
  return 2 * count * sizeof(std::uint32_t) + sort(nullptr, 0, nullptr, nullptr, {}, count, kMostBits, nullptr);
}

void sort_by_row(const Ids& ids, std::int64_t rows, const TokensByRow& sorted, void* scratch, cudaStream_t stream) {
  if (ids.count == 0) return;
  auto* unsorted_rows = static_cast<std::uint32_t*>(scratch);
  std::uint32_t* unsorted_tokens = unsorted_rows + ids.count;
  launch_kernel(find_rows, {blocks_for(ids.count, kThreads), kThreads, 0, stream}, ids, rows, unsorted_rows,
                unsorted_tokens);
  int bits = 1;
  while (bits < kMostBits && (rows >> bits) > 0) ++bits;
  const std::size_t bytes = sort(nullptr, 0, nullptr, nullptr, {}, ids.count, kMostBits, nullptr);
  sort(unsorted_tokens + ids.count, bytes, unsorted_rows, unsorted_tokens, sorted, ids.count, bits, stream);
}

std::int64_t partial_row_sums(std::int64_t count) { return 2 * blocks_for(count, kPiece); }

template <class T, class Sum>
void add_to_rows(const Matrix<const T>& grad, const TokensByRow& sorted, const Matrix<Sum>& sum, float* partial,
                 cudaStream_t stream) {
  const RowSums<T, Sum> all = {grad, sorted.rows, sorted.tokens, sum, partial};
  has_vectors<kVectorWidth<T>>(grad) && has_vectors<kVectorWidth<T>>(sum) ? launch_sums<kVectorWidth<T>>(all, stream)
                                                                          : launch_sums<1>(all, stream);
}

template void embedding_forward(const Ids&, const Matrix<const float>&, const Matrix<float>&, cudaStream_t);
template void embedding_forward(const Ids&, const Matrix<const __nv_bfloat16>&, const Matrix<__nv_bfloat16>&,
                                cudaStream_t);
template void add_to_rows(const Matrix<const float>&, const TokensByRow&, const Matrix<float>&, float*, cudaStream_t);
template void add_to_rows(const Matrix<const __nv_bfloat16>&, const TokensByRow&, const Matrix<float>&, float*,
                          cudaStream_t);
template void add_to_rows(const Matrix<const __nv_bfloat16>&, const TokensByRow&, const Matrix<__nv_bfloat16>&, float*,
                          cudaStream_t);

template void pick_rows(const std::int64_t*, const Matrix<const float>&, const Matrix<const float>&,
                        const Matrix<float>&, cudaStream_t);
template void pick_rows(const std::int64_t*, const Matrix<const __nv_bfloat16>&, const Matrix<const __nv_bfloat16>&,
                        const Matrix<__nv_bfloat16>&, cudaStream_t);

}  // namespace braid::kernels
