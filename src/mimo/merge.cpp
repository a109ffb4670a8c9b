#include "mimo/merge.h"

#include <ATen/ATen.h>

#include "tensor/upload.h"

namespace braid {

at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel) {
  return tokens.chunk(parallel.cp.size(), 0)[static_cast<std::size_t>(parallel.cp.rank())];
}

std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel) {
  return tokens / parallel.cp.size() / (parallel.sequence_parallel ? parallel.tp.size() : 1);
}

at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& rows, const at::Tensor& is_media,
                          const Parallel& parallel) {
  const std::int64_t own = merged.size(0), tokens = is_media.size(0);
  const std::int64_t first =
      parallel.cp.rank() * (tokens / parallel.cp.size()) + (parallel.sequence_parallel ? parallel.tp.rank() * own : 0);
  const at::Tensor here = is_media.narrow(0, first, own).nonzero().squeeze(1);
  const at::Tensor row_of = is_media.cumsum(0).narrow(0, first, own).index_select(0, here) - 1;
  if (!rows.requires_grad() && here.numel() == 0) return merged;
  return merged.index_put({upload(here, merged.device())}, rows.index_select(0, upload(row_of, merged.device())));
}

}  // namespace braid
