// Merges text and encoder embeddings of a replica's tokens, which are split over its ranks (nn/parallel.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/parallel.h"
#include "ops/rows.h"

namespace braid {

// The share of a replica's tokens that this rank embeds and whose labels it has.   [T] -> [T / cp]
at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel);

// The number of T tokens that a rank holds between parallel regions.
std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel);

// Finds the places of the replica's embeddings of one encoder among the tokens that this rank holds between parallel
// regions. `is_media` ([T] bool, on the CPU) marks the encoder's tokens among those of the replica. The result is on
// `device` but is computed by the host, which therefore need not wait for the device.
RowPlaces find_media(const at::Tensor& is_media, const Parallel& parallel, const at::Device& device);

// `merged` ([t, H]) with `embeddings` (of all the encoder's tokens of the replica) in place of this rank's media
// tokens. If the embeddings require a gradient, every rank that shares them takes part in its backward, even a rank
// that uses none of them, because that backward is collective.
at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& embeddings, const RowPlaces& media);

}  // namespace braid
