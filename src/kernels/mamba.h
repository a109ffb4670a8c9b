// Mamba2's operators between its projections: the gated norm, the causal convolution and the selective state space scan,
// as ops/norm.h, ops/causal_conv.h and ops/ssd_scan.h define them.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// A group has to fit into the registers of a block.
inline bool has_gated_rms_norm(std::int64_t group_size) { return group_size > 0 && group_size <= 8192; }

// Mamba2's gated norm, as ops/norm.h defines it.   y, z, out: [T, D]; weight: [D]; inverse_root: [T, groups]
template <class T>
void gated_rms_norm_forward(Matrix<const T> y, Matrix<const T> z, Parameter weight, std::int64_t groups, float eps,
                            Matrix<T> out, float* inverse_root, cudaStream_t stream);

// `partials` has gated_rms_norm_partials(T) rows of D elements.
std::int64_t gated_rms_norm_partials(std::int64_t tokens);
template <class T>
void gated_rms_norm_backward(Matrix<const T> grad, Matrix<const T> y, Matrix<const T> z, Parameter weight,
                             std::int64_t groups, const float* inverse_root, Matrix<T> y_grad, Matrix<T> z_grad,
                             float* partials, Parameter weight_grad, cudaStream_t stream);

struct ConvFilter {
  Parameter weight;  // [C, taps]
  Parameter bias;    // [C], or none
  int taps = 0;
};

inline bool has_causal_conv(std::int64_t taps) { return taps >= 2 && taps <= 4; }

// silu(bias + depthwise causal convolution) inside each sequence, as ops/causal_conv.h defines it.
// x, y: [T, C]; position_of: [T], the token's position in its sequence
template <class T>
void causal_conv_silu_forward(Matrix<const T> x, const ConvFilter& filter, const std::int64_t* position_of, Matrix<T> y,
                              cudaStream_t stream);

// `partials` has causal_conv_partials(T) rows of (taps + 1) * C elements.
std::int64_t causal_conv_partials(std::int64_t tokens);
template <class T>
void causal_conv_silu_backward(Matrix<const T> grad, Matrix<const T> x, const ConvFilter& filter,
                               const std::int64_t* position_of, Matrix<T> x_grad, float* partials,
                               const ConvFilter& filter_grad, cudaStream_t stream);

// The scan in bf16; ops/ssd_scan.cpp has the formulas. Sequences are cut into chunks of kSsdChunk tokens, the last one of
// each may be shorter.
constexpr int kSsdChunk = 128;

constexpr bool ssd_scan_has_shape(std::int64_t width, std::int64_t state) {
  return width == 64 && (state == 64 || state == 128);
}
// Whether a block may have enough shared memory on the current GPU: 140 KiB, which sm_86 and sm_89 do not have.
bool ssd_scan_has_memory();

// Rows are `stride` elements apart.
struct Numbers : Parameter {
  std::int64_t stride = 1;
};

struct SsdTensors {
  Matrix<__nv_bfloat16> x, B, C;  // [T, h * p], [T, g * n]; rows begin at multiples of 16 bytes
  Numbers dt;                     // [T, h]
  Numbers A_log, D, dt_bias;      // [h]
};

struct SsdChunk {
  int begin, tokens;  // first token, how many
  int sequence;
  int place;  // 1 if it is the sequence's first chunk, plus 2 if it is the last
};

struct SsdSizes {
  std::int64_t heads = 0, groups = 0, width = 0, state = 0;
  std::int64_t chunks = 0;
  float dt_min = 0, dt_max = 0;
};

// States that enter and leave sequences, [sequences, h, p, n]; null: zeros enter, and what leaves is dropped.
struct SsdBorderStates {
  const float* enter = nullptr;
  float* leave = nullptr;
};

// Memory for intermediate results, with these numbers of elements. Forward fills the steps, and backward reads them.
struct SsdScratch {
  float* steps = nullptr;                // chunks * h * kSsdStepFloats
  float* passed = nullptr;               // backward: chunks * h * p * n / kSsdPassed
  float* tokens = nullptr;               // backward: chunks * h * kSsdTokenFloats
  float* sums = nullptr;                 // backward: chunks * h * 3
  __nv_bfloat16* state_grads = nullptr;  // backward: chunks * h * p * n
  __nv_bfloat16* score_grads = nullptr;  // backward: chunks * g * kSsdChunk^2
};
constexpr int kSsdStepFloats = 4 * kSsdChunk, kSsdTokenFloats = 6 * kSsdChunk, kSsdPassed = 256;

// y: [T, h * p]; states, the state before each chunk: [chunks, h, p, n]
void ssd_scan_forward(const SsdTensors& in, const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                      const SsdBorderStates& border, Matrix<__nv_bfloat16> y, __nv_bfloat16* states,
                      cudaStream_t stream);
// Writes the gradients of all inputs. `border` has the gradients: those of the states that leave sequences enter here.
void ssd_scan_backward(Matrix<__nv_bfloat16> grad, const SsdTensors& in, const SsdSizes& sizes, const SsdChunk* chunks,
                       const __nv_bfloat16* states, const SsdScratch& scratch, const SsdBorderStates& border,
                       const SsdTensors& gradients, cudaStream_t stream);

}  // namespace braid::kernels
