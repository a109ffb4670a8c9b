#pragma once

#include "ops/packed_sequences.h"
#include "tensor/autograd.h"

namespace braid {

// h heads of width p in g groups that share B and C, state size n.
struct SsdInputs {
  at::Tensor x;        // [T, h, p]
  at::Tensor dt;       // [T, h] before bias and softplus
  at::Tensor A_log;    // [h]
  at::Tensor B, C;     // [T, g, n]; head i belongs to group i / (h / g)
  at::Tensor D;        // [h]
  at::Tensor dt_bias;  // [h]
  // [sequences, h, p, n] in the dtype of the arithmetic: H before the first token of each; undefined: zeros
  at::Tensor initial_states{};
};

struct SsdOptions {
  std::int64_t chunk = 128;
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();  // softplus(dt + bias) is clamped to these
};

// Mamba2's selective state space scan. With s = clamp(softplus(dt + dt_bias)) and A = -exp(A_log), per head:
//   H_t = exp(s_t A) H_{t-1} + s_t x_t B_t^T,   y_t = H_t C_t + D x_t
// and H = 0, or an initial state, before the first token of each sequence. Computed in chunks: inside a chunk as masked
// matrix products, between chunks by passing the state on. Saves its inputs and the states at chunk boundaries;
// backward recomputes the rest. Arithmetic in fp32, or in double for double tensors.   y: [T, h, p] in x's dtype
at::Tensor ssd_scan(const SsdInputs& inputs, const SsdOptions& options, const PackedSequences& sequences);

// The same, with the state after each sequence.
struct SsdOutput {
  at::Tensor y;
  at::Tensor final_states;  // [sequences, h, p, n] in the dtype of the arithmetic
};
SsdOutput ssd_scan_with_states(const SsdInputs& inputs, const SsdOptions& options, const PackedSequences& sequences);

// Kernels on a GPU have bf16 inputs, chunks of kScanChunk tokens, bf16 factors in products, and bf16 states, which are
// passed on in fp32.
struct SsdSaved {
  at::Tensor states;  // before each chunk, [chunks, g, h / g * p, n]
  at::Tensor steps;   // s and what follows from it, as kernels need it; undefined without kernels
};
OutputAndSaved<SsdSaved> ssd_scan_forward(const SsdInputs& inputs, const SsdOptions& options,
                                          const PackedSequences& sequences, at::Tensor* final_states = nullptr);
// The gradient of each input, in its dtype. The final states have no gradient if it is undefined.
SsdInputs ssd_scan_backward(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                            const SsdOptions& options, const PackedSequences& sequences,
                            const at::Tensor& final_states_grad = {});
// The same, written into `gradients`, which may be columns of wider tensors.
void ssd_scan_backward_into(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                            const SsdOptions& options, const PackedSequences& sequences, const SsdInputs& gradients,
                            const at::Tensor& final_states_grad = {});

}  // namespace braid
