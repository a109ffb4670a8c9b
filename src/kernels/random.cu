#include "base/random_values.h"
#include "kernels/device.cuh"
#include "kernels/rows.h"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256;

// A thread draws one pair of values; a row begins and ends within a pair or between two.
template <class T, class PairOf>
__global__ void __launch_bounds__(kThreads) draw_pairs(Matrix<T> x, RandomRows values, PairOf pair_of) {
  wait_for_previous();
  const std::int64_t pairs = x.columns / 2 + 1, thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = thread / pairs;
  if (row >= x.rows) return;
  const std::uint64_t first = values.first + row * values.row_step, pair = first / 2 + thread % pairs;
  const std::int64_t column = static_cast<std::int64_t>(2 * pair - first);  // -1 if a row begins within its first pair
  const RandomPair drawn = pair_of(uniform_pair(values.seed, values.name_hash, pair));
  T* const to = x.data + row * x.stride + column;
  if (column >= 0 && column < x.columns) to[0] = from_float<T>(static_cast<float>(drawn.first));
  if (column + 1 < x.columns) to[1] = from_float<T>(static_cast<float>(drawn.second));
}

template <class PairOf>
void launch(const Tensor& x, const RandomRows& values, const PairOf& pair_of, const Queue& queue) {
  if (x.columns() == 0) return;
  with_type(x, [&]<class T>() {
    launch_kernel(draw_pairs<T, PairOf>, {blocks_for(x.rows() * (x.columns() / 2 + 1), kThreads), kThreads, 0, queue},
                  x, values, pair_of);
  });
}

}  // namespace

void draw(const Tensor& x, const RandomRows& values, bool normal, double scale, const Queue& queue) {
  const auto normal_pair_of = [scale] __device__(const RandomPair& uniform) -> RandomPair {
    const RandomPair normal = normal_pair(uniform);
    return {scale * normal.first, scale * normal.second};
  };
  const auto uniform_pair_of = [scale] __device__(const RandomPair& uniform) -> RandomPair {
    return {scale * (2 * uniform.first - 1), scale * (2 * uniform.second - 1)};
  };
  normal ? launch(x, values, normal_pair_of, queue) : launch(x, values, uniform_pair_of, queue);
}

}  // namespace braid::kernels
