// Products of bf16 matrices by cuBLAS.
#pragma once

#include "kernels/tensor.h"

namespace braid::kernels {

// What is done to the elements p of a product, bias included; GELU is its tanh form. `aux` is like the result.
enum class Gelu {
  None,
  Forward,   // result = gelu(p), aux = p
  Backward,  // result = p gelu'(aux)
};

struct Product {
  Tensor left, right;  // [rows, depth], [depth, columns], each stored by rows or by columns
  Tensor bias{};       // added to every row of the result; or absent
  Tensor result;       // [rows, columns], fp32 or bf16
  bool add = false;    // to the result
  Gelu gelu = Gelu::None;
  Tensor aux{};
};

// Where memory is: at multiples of kBlockAlignment, those of a block of the allocator, or of kLeastAlignment.
inline constexpr std::uint32_t kLeastAlignment = 16, kBlockAlignment = 256;

// By the algorithm that cuBLAS chooses for the shape on the current GPU. It takes some 20 us to choose, so the choices
// are kept; to time its other algorithms gains nothing (docs/benchmarks/llm_slice.md). False, and nothing is done, if
// cuBLAS cannot do it; throws std::runtime_error if it fails.
bool cublas_multiply(const Product& product, const Queue& queue);

}  // namespace braid::kernels
