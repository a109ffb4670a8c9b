#include "mimo/merge.h"

#include <ATen/ATen.h>

#include "ops/select_rows.h"
#include "tensor/upload.h"

namespace braid {

at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel) {
  return tokens.chunk(parallel.cp.size(), 0)[static_cast<std::size_t>(parallel.cp.rank())];
}

std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel) {
  return tokens / parallel.cp.size() / (parallel.sequence_parallel ? parallel.tp.size() : 1);
}

MediaTokens find_media(const at::Tensor& is_media, const Parallel& parallel, const at::Device& device) {
  const std::int64_t tokens = is_media.size(0), own = own_rows_of(tokens, parallel);
  const std::int64_t first =
      parallel.cp.rank() * (tokens / parallel.cp.size()) + (parallel.sequence_parallel ? parallel.tp.rank() * own : 0);
  const at::Tensor here = is_media.narrow(0, first, own).nonzero().squeeze(1);
  const at::Tensor rows = is_media.cumsum(0).narrow(0, first, own).index_select(0, here) - 1;
  return {upload(here, device), upload(rows, device)};
}

at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& embeddings, const MediaTokens& media) {
  if (!embeddings.requires_grad() && media.positions.numel() == 0) return merged;
  return differentiable(
      "PutEmbeddingsBackward", {merged, embeddings},
      [&] { return merged.index_copy(0, media.positions, embeddings.index_select(0, media.rows)); },
      [media, count = embeddings.size(0)](const at::Tensor& grad) {
        return Tensors{grad.index_fill(0, media.positions, 0),
                       select_rows_backward(grad.index_select(0, media.positions), media.rows, count)};
      });
}

}  // namespace braid
