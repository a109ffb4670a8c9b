#include <ATen/ops/from_blob.h>
#include "kernels/adam.h"
#include "ops/has_kernel.h"
#include "optim/sharded_adam.h"

namespace braid::cuda {

AdamTable adam_table(const std::vector<AdamPiece>& pieces) {
  std::vector<kernels::AdamRange> ranges;
  for (const AdamPiece& piece : pieces)
    ranges.push_back({.gradient = kernel_tensor(piece.gradient),
                      .main = kernel_tensor(piece.main),
                      .exp_avg = kernel_tensor(piece.exp_avg),
                      .exp_avg_sq = kernel_tensor(piece.exp_avg_sq),
                      .parameter = piece.parameter.data_ptr(),
                      .count = piece.main.numel(),
                      .decayed = piece.decayed,
                      .counts = piece.counts});
  const kernels::AdamBlocks blocks = kernels::lay_out_blocks(ranges);
  AdamTable table = {.dtype = pieces.at(0).parameter.scalar_type(),
                     .size = static_cast<int>(ranges.size()),
                     .sum_blocks = blocks.sum,
                     .update_blocks = blocks.update};
  const auto bytes = static_cast<std::int64_t>(ranges.size() * sizeof(ranges[0]));
  table.ranges = at::from_blob(ranges.data(), {bytes}, at::kByte).to(pieces[0].main.device());
  return table;
}

at::Tensor sum_squares(const AdamTable& table) {
  const kernels::AdamBlocks blocks = {table.sum_blocks, table.update_blocks};
  return fill<kernels::sum_squares>(table.ranges.new_empty({2}, at::kDouble), table.ranges, blocks);
}

void adam_update(const AdamTable& table, const AdamOptions& options) {
  const auto correction = [&](double beta) { return 1 - std::pow(beta, static_cast<double>(options.step)); };
  const kernels::AdamStep step = {.factor = static_cast<float>(options.factor),
                                  .decay = static_cast<float>(options.lr * options.weight_decay),
                                  .new_share1 = static_cast<float>(1 - options.beta1),
                                  .new_share2 = static_cast<float>(1 - options.beta2),
                                  .rate = static_cast<float>(options.lr / correction(options.beta1)),
                                  .root_scale = static_cast<float>(1 / std::sqrt(correction(options.beta2))),
                                  .eps = static_cast<float>(options.eps)};
  const kernels::AdamBlocks blocks = {table.sum_blocks, table.update_blocks};
  call<kernels::adam_update>(table.ranges, blocks, step, table.dtype == at::kFloat);
}

}  // namespace braid::cuda
