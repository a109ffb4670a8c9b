// Text embeddings and encoder embeddings of a replica's tokens, which are split over its ranks (nn/parallel.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/parallel.h"

namespace braid {

// The share of a replica's tokens that this rank embeds and has the labels of.   [T] -> [T / cp]
at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel);

// How many of T tokens a rank holds between parallel regions.
std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel);

// `merged` ([t, H]) with the i-th row of `rows` at the i-th token that `is_media` ([T] bool, on the CPU) marks, as far
// as these tokens are on this rank. If `rows` requires a gradient, every rank that shares them takes part in its
// backward, even a rank that uses none of them, because that backward is collective.
at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& rows, const at::Tensor& is_media,
                          const Parallel& parallel);

}  // namespace braid
