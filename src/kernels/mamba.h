// Mamba2's operators between its projections: the gated norm, the causal convolution and the selective state space
// scan, as ops/norm.h and ops/mamba.h define them.
#pragma once

#include "kernels/tensor.h"

namespace braid::kernels {

// A group has to fit into the registers of a block.
inline bool has_gated_rms_norm(std::int64_t group_size) { return group_size > 0 && group_size <= 8192; }

// y, z, out: [T, D]; weight: [D], float or bf16; inverse_root: [T, groups]
void gated_rms_norm_forward(const Tensor& y, const Tensor& z, const Tensor& weight, std::int64_t groups, float eps,
                            const Tensor& out, const Tensor& inverse_root, const Queue& queue);
void gated_rms_norm_backward(const Tensor& grad, const Tensor& y, const Tensor& z, const Tensor& weight,
                             std::int64_t groups, const Tensor& inverse_root, const Tensor& y_grad,
                             const Tensor& z_grad, const Tensor& weight_grad, const Queue& queue);

inline bool has_causal_conv(std::int64_t taps) { return taps >= 2 && taps <= 4; }

// silu(bias + depthwise causal convolution) inside each sequence.
// x, y: [T, C]; weight: [C, taps], bias: [C] or absent; position_of: [T], the token's position in its sequence
void causal_conv_silu_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& position_of,
                              const Tensor& y, const Queue& queue);
void causal_conv_silu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const Tensor& position_of, const Tensor& x_grad, const Tensor& weight_grad,
                               const Tensor& bias_grad, const Queue& queue);

// The scan in bf16; ops/mamba.cpp has the formulas. Sequences are cut into chunks of kSsdChunk tokens, the last one of
// each may be shorter.
constexpr int kSsdChunk = 128;
constexpr int kSsdStepFloats = 4 * kSsdChunk;

constexpr bool ssd_scan_has_shape(std::int64_t width, std::int64_t state) {
  return width == 64 && (state == 64 || state == 128);
}
// Whether a block may have enough shared memory on the current GPU: 140 KiB, which sm_86 and sm_89 do not have.
bool ssd_scan_has_memory();

// The inputs of the scan, or their gradients.
struct SsdTensors {
  Tensor x, B, C;            // [T, h * p], [T, g * n] in bf16; rows begin at multiples of 16 bytes
  Tensor dt;                 // [T, h], float or bf16 with contiguous rows
  Tensor A_log, D, dt_bias;  // [h], float or bf16
};

struct SsdSizes {
  std::int64_t heads = 0, groups = 0, width = 0, state = 0;
  std::int64_t chunks = 0;
  float dt_min = 0, dt_max = 0;
};

// States that enter and leave sequences, [sequences, h, p, n]; absent: zeros enter, and what leaves is dropped.
struct SsdBorder {
  Tensor enter, leave;
};

// y: [T, h * p]; states, the state before each chunk: [chunks, h, p, n]; steps, which backward reads: kSsdStepFloats
// for each chunk and head. `chunks` are four integers each: first token, number of tokens, sequence, and its place
// there.
void ssd_scan_forward(const SsdTensors& in, const SsdSizes& sizes, const Tensor& chunks, const SsdBorder& border,
                      const Tensor& y, const Tensor& states, const Tensor& steps, const Queue& queue);
// Writes the gradients of all inputs. `border` has the gradients: those of the states that leave sequences enter here.
void ssd_scan_backward(const Tensor& grad, const SsdTensors& in, const SsdSizes& sizes, const Tensor& chunks,
                       const Tensor& states, const Tensor& steps, const SsdBorder& border, const SsdTensors& gradients,
                       const Queue& queue);

}  // namespace braid::kernels
