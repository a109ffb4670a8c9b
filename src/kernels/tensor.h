// What kernels take: tensors in a GPU's memory, numbers, and a queue; libtorch is not known here. Elements are float or
// bf16 where nothing else is said, arithmetic is in float. A function returns when its kernels are queued, and leaves
// errors of the launch to cudaGetLastError().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>

struct CUstream_st;  // a cudaStream_t points to one

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

// A tensor, which becomes what a kernel's parameter asks for. No data: there is none.
struct Tensor {
  static constexpr int kMostDims = 5;

  void* data = nullptr;
  std::int64_t element_bytes = 0;
  bool is_float = false;
  int dims = 0;
  std::int64_t sizes[kMostDims] = {}, strides[kMostDims] = {};

  std::int64_t rows() const { return sizes[0]; }
  std::int64_t columns() const { return sizes[1]; }
  std::int64_t elements() const { return std::accumulate(sizes, sizes + dims, std::int64_t{1}, std::multiplies<>()); }
  Tensor flat() const { return {data, element_bytes, is_float, 1, {elements()}, {1}}; }

  // Its elements; a struct, which is larger, covers several.
  template <class T>
  operator T*() const {
    if (data && sizeof(T) <= sizeof(std::int64_t) && static_cast<std::int64_t>(sizeof(T)) != element_bytes)
      throw std::logic_error("a kernel was given elements of another size");
    return static_cast<T*>(data);
  }
  template <class T>
  operator Matrix<T>() const {
    if (!data && dims == 0) return {};
    if (dims != 2 || (strides[1] != 1 && sizes[1] > 1)) throw std::logic_error("rows of a matrix must be contiguous");
    return {*this, sizes[0], sizes[1], strides[0]};
  }
  operator Parameter() const { return {data, is_float}; }
};

// Where a function queues its kernels, and memory that they may use until they are done.
struct Queue {
  CUstream_st* stream = nullptr;
  std::function<void*(std::size_t bytes)> allocate{};

  operator CUstream_st*() const { return stream; }
  template <class T>
  T* scratch(std::int64_t count) const {
    return static_cast<T*>(allocate(static_cast<std::size_t>(count) * sizeof(T)));
  }
};

struct ComputeCapability {
  int major = 0, minor = 0;
};
ComputeCapability compute_capability();  // of the current device

}  // namespace braid::kernels
