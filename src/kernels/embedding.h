// Rows that are looked up by number.
#pragma once

#include <cstddef>

#include "kernels/matrix.h"

namespace braid::kernels {

// Ids of tokens, and the slice of a vocabulary that this rank has the embeddings of.
struct Ids {
  const std::int64_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t first = 0;       // id of the slice
  std::int64_t vocabulary = 0;  // ids on all ranks
};

// y[t] = weight[id - first]; zeros for ids of other slices, NaN for ids outside the vocabulary.
template <class T>
void embedding_forward(const Ids& ids, const Matrix<const T>& weight, const Matrix<T>& y, cudaStream_t stream);

// The tokens in the order of their rows in the slice, equal rows in the order of their tokens. Tokens of other slices
// come last; their row is the number of rows.
struct TokensByRow {
  std::uint32_t *rows = nullptr, *tokens = nullptr;  // [ids]
};
// `scratch` has sort_scratch_bytes(ids.count).
std::size_t sort_scratch_bytes(std::int64_t count);
void sort_by_row(const Ids& ids, std::int64_t rows, const TokensByRow& sorted, void* scratch, cudaStream_t stream);

// sum[row] += the gradients of its tokens, added in order. `partial` has room for partial_row_sums(ids) rows of `sum`,
// in float.
std::int64_t partial_row_sums(std::int64_t count);
template <class T, class Sum>
void add_to_rows(const Matrix<const T>& grad, const TokensByRow& sorted, const Matrix<Sum>& sum, float* partial,
                 cudaStream_t stream);

// y[i] = there[numbers[i]], or elsewhere[i] where the number is negative; zeros in place of a matrix without data.
template <class T>
void pick_rows(const std::int64_t* numbers, const Matrix<const T>& there, const Matrix<const T>& elsewhere,
               const Matrix<T>& y, cudaStream_t stream);

}  // namespace braid::kernels
