#pragma once

#include "kernels/device.cuh"

namespace braid::kernels {

// Rounds two bf16 numbers with one instruction.
template <class T, int kWidth>
__device__ Vector<T, kWidth> pack(const float (&values)[kWidth]) {
  Vector<T, kWidth> packed;
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0)
    for (int i = 0; i < kWidth; i += 2)
      reinterpret_cast<__nv_bfloat162*>(packed.values)[i / 2] = __floats2bfloat162_rn(values[i], values[i + 1]);
  else
    for (int i = 0; i < kWidth; ++i) packed.values[i] = from_float<T>(values[i]);
  return packed;
}

// The compiler takes the values for new ones: it computes again what it would keep in registers.
template <class T, int kWidth>
__device__ void forget(Vector<T, kWidth>& vector) {
  if constexpr (sizeof(vector) % 4 == 0)
    for (int i = 0; i < static_cast<int>(sizeof(vector)) / 4; ++i)
      asm volatile("" : "+r"(reinterpret_cast<unsigned*>(&vector)[i]));
}

}  // namespace braid::kernels
