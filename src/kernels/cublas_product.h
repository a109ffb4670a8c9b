// Products of bf16 matrices by cuBLAS.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace braid::kernels {

// What is done to the elements p of a product, bias included; GELU is its tanh form. `aux` is like the result.
enum class Gelu {
  None,
  Forward,   // result = gelu(p), aux = p
  Backward,  // result = p gelu'(aux)
};

// result = left right, or result += left right; all are stored by rows, `stride` elements apart.
struct ProductShape {
  std::int64_t rows = 0, columns = 0, depth = 0;  // left is [rows, depth], right is [depth, columns]
  std::int64_t left_stride = 0, right_stride = 0, stride = 0;
  bool left_transposed = false, right_transposed = false;  // stored as [depth, rows], as [columns, depth]
  std::uint32_t alignment = 16;                            // of all pointers, in bytes
  bool is_float = false;                                   // the result is fp32, else bf16
  bool add = false;
  bool has_bias = false;  // added to every row of the result; bf16
  Gelu gelu = Gelu::None;
  auto operator<=>(const ProductShape&) const = default;
};

struct ProductTensors {
  const void *left = nullptr, *right = nullptr, *bias = nullptr;
  void *result = nullptr, *workspace = nullptr, *aux = nullptr;
};

// The algorithm that cuBLAS chooses for a shape on the current GPU.
class CublasProduct {
 public:
  explicit CublasProduct(const ProductShape& shape);
  ~CublasProduct();

  bool is_possible() const;
  std::size_t workspace_bytes() const;
  // Not by two threads at once. Throws std::runtime_error if cuBLAS fails.
  void run(const ProductTensors& tensors, cudaStream_t stream);

 private:
  struct Descriptors;
  std::unique_ptr<Descriptors> descriptors_;
};

}  // namespace braid::kernels
