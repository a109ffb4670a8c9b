// Matrices in fp8, and their products.
#pragma once

#include <ATen/core/Tensor.h>
#include "kernels/moe.h"

namespace braid {

// Sizes of an fp8 product are multiples of this, but for the rows of its left factor.
inline constexpr std::int64_t kFp8Multiple = 16;

// A matrix in e4m3 (3 bits of mantissa, magnitudes up to 448), with a scale for each row: an element is its value times
// the scale of its row. The scale is the row's largest magnitude over 448, so rounding changes an element by at most
// 1/16 of itself, or by 2^-10 scales if that is more. A row of magnitudes below 1e-30 is zero and has the scale 1.
// There may be a leading dimension for several matrices.
struct Fp8Matrix {
  at::Tensor values;  // [..., R, C]
  at::Tensor scales;  // [..., R] fp32
};

struct Fp8Forms {
  bool rows = false, columns = false;
};

// A matrix with a scale for each of its rows, and its transpose with a scale for each of its columns: a product sums
// along the rows of its factors, so that a matrix which is summed along both its dimensions is needed in both forms.
struct Fp8Pair {
  Fp8Matrix rows;     // [..., R, C]
  Fp8Matrix columns;  // [..., C, R], where R is rounded up to a multiple of 16 with zeros
};

// Undefined where not wanted.   x: [..., R, C]
Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted);

// Both forms of a weight, computed once per value: 2 bytes per element. A tensor's version tells whether its value has
// changed. ATen's in-place operations count it up; whoever writes to its memory otherwise calls bump_version().
struct Fp8Copies {
  Fp8Pair forms{};
  std::int64_t version = -1;
  const void* data = nullptr;

  // The wanted forms of the weight's matrix or matrices.
  const Fp8Pair& of(const at::Tensor& matrix, const Fp8Forms& wanted);
};

// The matrix as fp32.
at::Tensor dequantize(const Fp8Matrix& matrix);

// A GPU's tensor cores sum products of fp8 with 13 bits. A fast sum stays there, a precise one moves to fp32 every 128
// terms, which takes 10-30 % longer.
enum class Fp8Sum { Fast, Precise };
inline constexpr Fp8Sum kOutputSum = Fp8Sum::Fast;
inline constexpr Fp8Sum kInputGradientSum = Fp8Sum::Fast;
inline constexpr Fp8Sum kWeightGradientSum = Fp8Sum::Precise;  // thousands of tokens, whose gradients mostly cancel

// a b^T, rounded to `dtype`. Without a GPU the product is emulated, with the same factors and a sum in fp32.
// a: [M, K], b: [N, K] -> [M, N]
at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype, Fp8Sum sum);
void write_fp8_product(at::Tensor result, const Fp8Matrix& a, const Fp8Matrix& b, Fp8Sum sum);  // in result's dtype

using kernels::ComputeCapability;
// Throw a ConfigError if this GPU, or one of this compute capability, has no fp8 products.
void check_fp8_support(const at::Device& device);
void check_fp8_support(const ComputeCapability& capability);

// Braid's kernel converts bf16 with columns in multiples of 8 up to 32768, and of several matrices rows in multiples of
// 16. What it writes, and x in a form that it reads.
bool can_quantize(const at::Tensor& x);
at::Tensor quantizable(const at::Tensor& x);
// shape: [..., R, C], where columns have `length` >= R elements
Fp8Pair empty_pair(const at::Tensor& like, const std::vector<std::int64_t>& shape, const Fp8Forms& wanted,
                   std::int64_t length);
kernels::Fp8Matrices kernel_matrices(const Fp8Matrix& x);
inline std::int64_t round_up(std::int64_t size, std::int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

}  // namespace braid
