// The optimizer's passes by Braid's kernels (src/kernels); see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace braid::cuda {

// Flat tensors of neighbouring elements: `parameter` is the model's, in float or bf16, the others are float.
struct AdamPiece {
  at::Tensor gradient, main, exp_avg, exp_avg_sq, parameter;
  bool decayed = false;  // by weight decay
  bool counts = false;   // in the sum of squares
};

// All of them, as kernels read them. The tensors must keep their memory.
struct AdamTable {
  at::Tensor ranges;       // bytes on the device
  at::ScalarType dtype{};  // of the parameters
  int size = 0;
  std::int64_t sum_blocks = 0, update_blocks = 0;  // of threads, in each pass
};
AdamTable adam_table(const std::vector<AdamPiece>& pieces);

// The sum of the squares that count, and 1 if any gradient is not finite, else 0.   -> [2] double
at::Tensor sum_squares(const AdamTable& table);

struct AdamOptions {
  std::int64_t step = 1;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double factor = 1;  // of the gradients
};
// Updates the main copy and the moments, and copies the main copy to the parameters.
void adam_update(const AdamTable& table, const AdamOptions& options);

}  // namespace braid::cuda
