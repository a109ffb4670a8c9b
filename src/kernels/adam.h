// The optimizer's two passes over memory: one that sums the gradient's squares, and one that updates everything. Each
// is one launch for all parameters.
#pragma once

#include <cstdint>
#include <vector>
#include "kernels/tensor.h"

namespace braid::kernels {

// Neighbouring elements that are treated alike.
struct AdamRange {
  const float* gradient = nullptr;
  float *main = nullptr, *exp_avg = nullptr, *exp_avg_sq = nullptr;
  void* parameter = nullptr;  // the model's copy
  std::int64_t count = 0;
  bool decayed = false;                                      // by weight decay
  bool counts = false;                                       // in the sum of squares
  bool aligned = false;                                      // to the widest memory instructions
  std::int64_t first_sum_block = 0, first_update_block = 0;  // of the threads' blocks that work on it in each pass
};

// How many blocks of threads each pass has.
struct AdamBlocks {
  std::int64_t sum = 0, update = 0;
};
// Sets the members of the ranges that follow from the others.
AdamBlocks lay_out_blocks(std::vector<AdamRange>& ranges);

// terms[0] = the sum of squares in double, in a fixed order; terms[1] = 1 if any element of any range is not finite,
// else 0.   ranges: AdamRange
void sum_squares(const Tensor& ranges, const AdamBlocks& blocks, const Tensor& terms, const Queue& queue);

// AdamW's step with gradient g = factor * gradient:
//   main -= decay * main, where decayed
//   exp_avg += new_share1 * (g - exp_avg), exp_avg_sq += new_share2 * (g * g - exp_avg_sq)
//   main -= rate * exp_avg / (root_scale * sqrt(exp_avg_sq) + eps)
// The new shares are 1 - beta; rate and root_scale contain the corrections for the moments' first steps.
struct AdamStep {
  float factor = 1, decay = 0, new_share1 = 0, new_share2 = 0, rate = 0, root_scale = 1, eps = 0;
};
// Also copies the main copy to the model's parameters, which are float or bf16.
void adam_update(const Tensor& ranges, const AdamBlocks& blocks, const AdamStep& step, bool parameters_are_float,
                 const Queue& queue);

}  // namespace braid::kernels
