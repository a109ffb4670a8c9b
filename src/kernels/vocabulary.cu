// What is looked up in a vocabulary of which this rank has a slice: rows by number, and the losses of labels.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cub/device/device_radix_sort.cuh>
#include "kernels/device.cuh"
#include "kernels/rows.h"

namespace braid::kernels {
namespace {

// Forward has a block of threads for each row, and a thread loads some vectors before it uses the first. Backward has a
// block for each piece of a row, with some vectors for each thread.
constexpr int kRowThreads = 512, kVectorsAtOnce = 4;
constexpr int kPieceThreads = 256, kPieceVectors = 4;

// The label of each row among all columns of the vocabulary.
struct LabelledColumns {
  const std::int64_t* labels;
  VocabularySlice slice;
  std::int64_t ignored;
};

// The largest of some logits, and the sum of exp(logit - max). The difference of two logits is exact where it matters,
// so fast_exp() is as precise as exp.
struct SoftmaxSum {
  float max = -FLT_MAX, sum = 0;

  __device__ void raise_to(float larger) {
    sum *= fast_exp(max - larger);
    max = larger;
  }
};

template <class T, int kWidth, int kCount>
__device__ void add_vectors(SoftmaxSum& total, const Vector<T, kWidth> (&vectors)[kCount]) {
  float largest = total.max;
  for (const auto& vector : vectors)
    for (const T value : vector.values) largest = fmaxf(largest, to_float(value));
  if (largest > total.max) total.raise_to(largest);
  for (const auto& vector : vectors)
    for (const T value : vector.values) total.sum += fast_exp(to_float(value) - total.max);
}

// Of the vectors that this thread reads.
template <int kWidth, class T>
__device__ SoftmaxSum sum_own(const T* row, std::int64_t columns) {
  constexpr std::int64_t kStep = kRowThreads * kWidth;
  using Loaded = Vector<T, kWidth>;
  SoftmaxSum total;
  std::int64_t begin = threadIdx.x * kWidth;
  for (; begin + (kVectorsAtOnce - 1) * kStep < columns; begin += kVectorsAtOnce * kStep) {
    Loaded vectors[kVectorsAtOnce];
#pragma unroll
    for (int i = 0; i < kVectorsAtOnce; ++i) vectors[i] = Loaded::load(row + begin + i * kStep);
    add_vectors(total, vectors);
  }
  for (; begin < columns; begin += kStep) {
    const Loaded vectors[1] = {Loaded::load(row + begin)};
    add_vectors(total, vectors);
  }
  return total;
}

__device__ float warp_max(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

// Of all threads of a block, in each of them.
__device__ SoftmaxSum add_all(SoftmaxSum own) {
  __shared__ float largest[kWarp], sums[kWarp];
  const float in_warp = warp_max(own.max);
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = in_warp;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  own.raise_to(warp_max(lane < kRowThreads / kWarp ? largest[lane] : -FLT_MAX));
  own.sum = block_sum(own.sum, sums);
  return own;
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward(Matrix<const T> logits, LabelledColumns columns, float* results) {
  wait_for_previous();
  const std::int64_t row = blockIdx.x, label = columns.labels[row];
  const T* data = logits.data + row * logits.stride;
  SoftmaxSum total = {0, 1};
  if (label != columns.ignored) total = add_all(sum_own<kWidth>(data, logits.columns));
  if (threadIdx.x > 0) return;
  const std::int64_t column = label - columns.slice.first;
  const bool is_here = column >= 0 && column < logits.columns && label != columns.ignored;
  const bool is_nowhere = (label < 0 || label >= columns.slice.all) && label != columns.ignored;
  const float found = is_here ? to_float(data[column]) : 0;
  if (is_nowhere) total.sum = nanf("");
  results[row] = total.max;
  results[logits.rows + row] = total.sum;
  results[2 * logits.rows + row] = found;
  results[3 * logits.rows + row] = logf(total.sum) - (found - total.max);
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kPieceThreads)
    backward(Matrix<T> logits, LabelledColumns columns, const float* maxima, const float* sums, const float* grads,
             std::int64_t pieces) {
  wait_for_previous();
  constexpr int kStep = kPieceThreads * kWidth;
  const std::int64_t row = blockIdx.x / pieces, piece = blockIdx.x % pieces, label = columns.labels[row];
  const bool is_ignored = label == columns.ignored;
  const float max = maxima[row], grad = is_ignored ? 0 : grads[row], scale = grad / sums[row];
  T* data = logits.data + row * logits.stride;
#pragma unroll
  for (int i = 0; i < kPieceVectors; ++i) {
    const std::int64_t begin = (piece * kPieceVectors + i) * kStep + threadIdx.x * kWidth;
    if (begin >= logits.columns) break;
    Vector<T, kWidth> vector = {};
    if (!is_ignored) vector = Vector<T, kWidth>::load(data + begin);
    const std::int64_t label_at = label - columns.slice.first - begin;
    for (int k = 0; k < kWidth; ++k) {
      const float probability = fast_exp(to_float(vector.values[k]) - max) * scale;
      vector.values[k] = from_float<T>(is_ignored ? 0 : probability - (k == label_at ? grad : 0));
    }
    vector.store(data + begin);
  }
}

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

template <class T>
struct FindEmbedding {
  const std::int64_t* ids;
  VocabularySlice slice;
  Matrix<const T> weight;

  __device__ Source<T> operator()(std::int64_t token) const {
    const std::int64_t id = ids[token], row = id - slice.first;
    if (row >= 0 && row < weight.rows) return {weight.data + row * weight.stride, T()};
    return {nullptr, from_float<T>(id < 0 || id >= slice.all ? nanf("") : 0.f)};
  }
};

template <class T>
struct FindNumbered {
  const std::int64_t* numbers;
  Matrix<const T> there, elsewhere;

  __device__ Source<T> operator()(std::int64_t row) const {
    const std::int64_t number = numbers[row];
    const Matrix<const T>& from = number < 0 ? elsewhere : there;
    return {from.data == nullptr ? nullptr : from.data + (number < 0 ? row : number) * from.stride, from_float<T>(0)};
  }
};

LaunchShape warp_per_row(const Tensor& y, const Queue& queue) {
  return {blocks_for(y.rows(), kThreads / kWarp), kThreads, 0, queue};
}

__global__ void __launch_bounds__(kThreads) find_rows(const std::int64_t* ids, std::int64_t count, std::int64_t first,
                                                      std::int64_t rows, std::uint32_t* row_of, std::uint32_t* tokens) {
  wait_for_previous();
  const std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= count) return;
  const std::int64_t row = ids[token] - first;
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
void launch_sums(const RowSums<T, Sum>& all, const Queue& queue) {
  const dim3 grid(blocks_for(all.grad.rows, kPiece), blocks_for(all.sum.columns, kSumThreads * kWidth));
  launch_kernel(sum_pieces<kWidth, T, Sum>, {grid, kSumThreads, 0, queue}, all);
  launch_kernel(join_pieces<kWidth, T, Sum>, {grid, kSumThreads, 0, queue}, all);
}

// The tokens in the order of their rows in the slice, equal rows in the order of their tokens. Tokens of other slices
// come last; their row is the number of rows.
struct TokensByRow {
  std::uint32_t *rows, *tokens;
};
TokensByRow sort_by_row(const Tensor& ids, std::int64_t first, std::int64_t rows, const Queue& queue) {
  const std::int64_t count = ids.rows();
  auto* const memory = queue.scratch<std::uint32_t>(4 * count);
  const TokensByRow sorted = {memory, memory + count}, unsorted = {memory + 2 * count, memory + 3 * count};
  launch_kernel(find_rows, {blocks_for(count, kThreads), kThreads, 0, queue}, ids, count, first, rows, unsorted.rows,
                unsorted.tokens);
  const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint32_t>(rows))));
  void* scratch = nullptr;
  std::size_t bytes = 0;
  for (int turn = 0; turn < 2; ++turn) {  // first it tells how much memory it needs
    if (turn > 0) scratch = queue.scratch<char>(static_cast<std::int64_t>(bytes));
    cub::DeviceRadixSort::SortPairs(scratch, bytes, unsorted.rows, sorted.rows, unsorted.tokens, sorted.tokens, count,
                                    0, bits, queue.stream);
  }
  return sorted;
}

}  // namespace

void cross_entropy_forward(const Tensor& logits, const Tensor& labels, const VocabularySlice& slice,
                           std::int64_t ignored, const Tensor& results, const Queue& queue) {
  with_vectors(logits.columns(), {logits}, [&]<class T, int kWidth>() {
    launch_kernel(forward<kWidth, T>, {logits.rows(), kRowThreads, 0, queue}, logits,
                  LabelledColumns{labels, slice, ignored}, results);
  });
}

void cross_entropy_backward(const Tensor& logits, const Tensor& labels, const VocabularySlice& slice,
                            std::int64_t ignored, const Tensor& max, const Tensor& sum, const Tensor& grad,
                            const Queue& queue) {
  with_vectors(logits.columns(), {logits}, [&]<class T, int kWidth>() {
    const std::int64_t pieces = blocks_for(logits.columns(), kPieceThreads * kPieceVectors * kWidth);
    launch_kernel(backward<kWidth, T>, {logits.rows() * pieces, kPieceThreads, 0, queue}, logits,
                  LabelledColumns{labels, slice, ignored}, max, sum, grad, pieces);
  });
}

void embedding_forward(const Tensor& ids, const VocabularySlice& slice, const Tensor& weight, const Tensor& y,
                       const Queue& queue) {
  with_vectors(y.columns(), {weight, y}, [&]<class T, int kWidth>() {
    launch_kernel(copy_rows<kWidth, T, FindEmbedding<T>>, warp_per_row(y, queue), FindEmbedding<T>{ids, slice, weight},
                  y);
  });
}

void pick_rows(const Tensor& numbers, const Tensor& there, const Tensor& elsewhere, const Tensor& y,
               const Queue& queue) {
  with_vectors(y.columns(), {y, there, elsewhere}, [&]<class T, int kWidth>() {
    launch_kernel(copy_rows<kWidth, T, FindNumbered<T>>, warp_per_row(y, queue),
                  FindNumbered<T>{numbers, there, elsewhere}, y);
  });
}

void embedding_backward(const Tensor& grad, const Tensor& ids, const VocabularySlice& slice, const Tensor& sum,
                        const Queue& queue) {
  if (ids.rows() == 0) return;
  const TokensByRow sorted = sort_by_row(ids, slice.first, sum.rows(), queue);
  float* const partial = queue.scratch<float>(2 * blocks_for(ids.rows(), kPiece) * sum.columns());
  with_type(grad, [&]<class T>() {
    const auto add = [&]<class Sum>() {
      constexpr int kWidth = kVectorWidth<T>;
      const RowSums<T, Sum> all = {grad, sorted.rows, sorted.tokens, sum, partial};
      const bool wide = grad.columns() % kWidth == 0 && is_aligned(grad) && is_aligned(sum, kWidth * sizeof(Sum));
      wide ? launch_sums<kWidth>(all, queue) : launch_sums<1>(all, queue);
    };
    sum.is_float ? add.template operator()<float>() : add.template operator()<T>();
  });
}

}  // namespace braid::kernels
