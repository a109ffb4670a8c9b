// A block per token: its threads put the sines and cosines of the token's angles into shared memory, then rotate all
// heads, kWidth pairs of channels at a time.
#include <cmath>
#include "kernels/device.cuh"
#include "kernels/rows.h"

namespace braid::kernels {
namespace {

constexpr int kThreads = 128, kMaxPairs = 1024;

// Vectors of `width` channels, several per token.
template <class T>
struct Heads {
  T* data;
  std::int64_t tokens, heads, width, token_stride, head_stride;

  explicit Heads(const Tensor& x)
      : data(x), tokens(x.sizes[0]), heads(x.sizes[1]), width(x.sizes[2]), token_stride(x.strides[0]),
        head_stride(x.strides[1]) {}
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rotate_tokens(Heads<const T> x, const std::int64_t* positions, double exponent, double direction, Heads<T> y) {
  wait_for_previous();
  __shared__ float cosines[kMaxPairs], sines[kMaxPairs];
  const std::int64_t token = blockIdx.x;
  const int pairs = static_cast<int>(x.width / 2), vectors = pairs / kWidth;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    double sine, cosine;
    sincos(static_cast<double>(positions[token]) * exp(i * exponent), &sine, &cosine);
    cosines[i] = static_cast<float>(cosine);
    sines[i] = static_cast<float>(sine * direction);
  }
  __syncthreads();
  for (std::int64_t item = threadIdx.x; item < x.heads * vectors; item += kThreads) {
    const std::int64_t head = item / vectors;
    const int begin = static_cast<int>(item % vectors) * kWidth;
    const T* from = x.data + token * x.token_stride + head * x.head_stride + begin;
    T* to = y.data + token * y.token_stride + head * y.head_stride + begin;
    const auto first = Vector<T, kWidth>::load(from), second = Vector<T, kWidth>::load(from + pairs);
    float rotated_first[kWidth], rotated_second[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      const float a = to_float(first.values[i]), b = to_float(second.values[i]);
      const float cosine = cosines[begin + i], sine = sines[begin + i];
      rotated_first[i] = a * cosine - b * sine;
      rotated_second[i] = b * cosine + a * sine;
    }
    pack<T>(rotated_first).store(to);
    pack<T>(rotated_second).store(to + pairs);
  }
}

}  // namespace

void rotate(const Tensor& x, const Tensor& positions, double theta, double direction, const Tensor& y,
            const Queue& queue) {
  const std::int64_t width = x.sizes[2];
  const double exponent = -2 / static_cast<double>(width) * std::log(theta);
  with_vectors(width / 2, {x, y}, [&]<class T, int kWidth>() {
    launch_kernel(rotate_tokens<T, kWidth>, {x.rows(), kThreads, 0, queue}, x, positions, exponent, direction, y);
  });
}

}  // namespace braid::kernels
