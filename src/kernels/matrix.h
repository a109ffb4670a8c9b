// What kernels take: pointers to device memory, sizes and a stream; libtorch is not known here. Elements are float or
// bf16, arithmetic is in float. A function returns when its kernels are queued, and leaves errors of the launch to
// cudaGetLastError().
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace braid::kernels {

// Rows that start `stride` elements apart: a whole matrix, or some columns of a wider one.
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0;
};

// A parameter or its gradient, float or bf16; its dtype may differ from that of the activations. No data: there is
// none.
struct Parameter {
  void* data = nullptr;
  bool is_float = false;
};

}  // namespace braid::kernels
