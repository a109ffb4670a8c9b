#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cmath>

#include "kernels/adam.h"
#include "ops/kernel_call.h"
#include "optim/sharded_adam.h"

namespace braid::cuda {
namespace {

kernels::AdamRanges ranges_of(const AdamTable& table) {
  return {data<const kernels::AdamRange>(table.ranges), table.size, {table.sum_blocks, table.update_blocks}};
}

}  // namespace

AdamTable adam_table(const std::vector<AdamPiece>& pieces) {
  std::vector<kernels::AdamRange> ranges;
  for (const AdamPiece& piece : pieces)
    ranges.push_back({.gradient = data<float>(piece.gradient),
                      .main = data<float>(piece.main),
                      .exp_avg = data<float>(piece.exp_avg),
                      .exp_avg_sq = data<float>(piece.exp_avg_sq),
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
  const auto doubles = table.ranges.options().dtype(at::kDouble);
  const at::Tensor partial = at::empty({table.sum_blocks}, doubles), terms = at::empty({2}, doubles);
  call_kernel(table.ranges, [&]<class T>(cudaStream_t stream) {
    kernels::sum_squares(ranges_of(table), data<double>(partial), data<double>(terms), stream);
  });
  return terms;
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
  call_kernel(table.ranges, [&]<class T>(cudaStream_t stream) {
    if (table.dtype == at::kFloat)
      kernels::adam_update<float>(ranges_of(table), step, stream);
    else
      kernels::adam_update<__nv_bfloat16>(ranges_of(table), step, stream);
  });
}

}  // namespace braid::cuda
