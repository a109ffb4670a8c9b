// Where a replica's tokens are split over its ranks (nn/parallel.h): text from the embedding, and an encoder's rows
// where its tokens stand.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/parallel.h"

namespace braid {

// The part of a replica's tokens that this rank embeds and has the labels of.   [T] -> [T / cp]
at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel);

// How many rows a rank has of T tokens between parallel regions.
std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel);

// `merged` ([t, H]) with the i-th row in place of the i-th token that `is_media` ([T] bool, on the CPU) marks, as far
// as those are among this rank's. Rows that want a gradient give it to every rank that shares them, also where none of
// them goes: backward is run together.
at::Tensor put_rows(const at::Tensor& merged, const at::Tensor& rows, const at::Tensor& is_media,
                    const Parallel& parallel);

}  // namespace braid
