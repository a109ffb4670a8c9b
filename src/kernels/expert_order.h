// Rows of tokens in the order of their experts. T tokens choose k of E experts each: slot t * k + j is the j-th choice
// of token t, R = T * k slots in all.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

inline constexpr std::int64_t kMaxSortedExperts = 1024;

struct SortedSlots {
  std::int64_t *order = nullptr, *inverse = nullptr;  // [R] the slot of each row, and the row of each slot
  std::int64_t* counts = nullptr;                     // [E]
  std::int32_t* ends = nullptr;                       // [E] one past the last row of each expert
};

// The stable sort of slots by expert. block_counts: scratch of [sort_blocks(slots), num_experts]
std::int64_t sort_blocks(std::int64_t slots);
void sort_by_expert(const std::int64_t* experts, std::int64_t slots, int num_experts, std::int32_t* block_counts,
                    const SortedSlots& sorted, cudaStream_t stream);

// rows[inverse[t * k + j]] = x[t].   rows: [R, H]
template <class T>
void permute_to_experts(Matrix<const T> x, const std::int64_t* inverse, int top_k, T* rows, cudaStream_t stream);
// y[t] = the sum over j of rows[inverse[t * k + j]], plus added[t] if there is such a matrix; rounded once.
template <class T>
void unpermute_from_experts(const T* rows, const std::int64_t* inverse, int top_k, Matrix<const T> added, Matrix<T> y,
                            cudaStream_t stream);

}  // namespace braid::kernels
