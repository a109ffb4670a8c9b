#include "mimo/merge.h"

#include <ATen/ATen.h>

#include "tensor/copies.h"

namespace braid {

at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel) {
  return tokens.chunk(parallel.cp.size(), 0)[static_cast<std::size_t>(parallel.cp.rank())];
}

std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel) {
  return tokens / parallel.cp.size() / (parallel.sequence_parallel ? parallel.tp.size() : 1);
}

RowPlaces find_media(const at::Tensor& is_media, const Parallel& parallel, const at::Device& device) {
  const std::int64_t tokens = is_media.size(0), own = own_rows_of(tokens, parallel);
  const std::int64_t first =
      parallel.cp.rank() * (tokens / parallel.cp.size()) + (parallel.sequence_parallel ? parallel.tp.rank() * own : 0);
  const at::Tensor row_of = (is_media.cumsum(0) - 1).masked_fill_(is_media.logical_not(), -1).narrow(0, first, own);
  at::Tensor place_of = is_media.nonzero().squeeze(1) - first;
  place_of.masked_fill_(place_of >= own, -1);
  return {upload(row_of, device), upload(place_of, device)};
}

at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& embeddings, const RowPlaces& media) {
  if (embeddings.size(0) == 0 && !embeddings.requires_grad()) return merged;
  return put_rows(merged, embeddings, media);
}

}  // namespace braid
