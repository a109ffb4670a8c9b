#include "ops/packed_sequences.h"
#include <ATen/OpMathType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include "base/error.h"
#include "kernels/rows.h"
#include "ops/has_kernel.h"
#include "tensor/autograd.h"
#include "tensor/copies.h"

namespace braid {
namespace {

std::vector<int> chunks_of(const std::vector<std::int64_t>& offsets) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int64_t begin = offsets[i], end = offsets[i + 1]; begin < end; begin += kScanChunk) {
      const std::int64_t tokens = std::min(kScanChunk, end - begin);
      const int place = (begin == offsets[i] ? 1 : 0) + (begin + tokens == end ? 2 : 0);
      numbers.insert(numbers.end(), {static_cast<int>(begin), static_cast<int>(tokens), static_cast<int>(i), place});
    }
  return numbers;
}

// `count` int64 numbers from there on.
at::Tensor longs(const at::Tensor& numbers, std::int64_t place, std::int64_t count) {
  return numbers.narrow(0, place, 2 * count).view(at::kLong);
}

// positions * base^(-i * step) for i below `count`.   [T, count]
at::Tensor angles(const at::Tensor& positions, double base, double step, std::int64_t count) {
  const at::Tensor exponents = at::arange(count, positions.options().dtype(at::kDouble)).mul_(-step * std::log(base));
  return positions.to(at::kDouble).unsqueeze(1) * exponents.exp();
}

// Direction 1 is the forward, -1 the backward: a rotation's transpose is its inverse.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, double direction) {
  if (has_kernel({x}) && x.numel() > 0 && kernels::has_rotary(x.size(-1))) {
    const bool is_matrix_of_vectors = x.dim() == 3 && x.stride(2) == 1;
    const at::Tensor vectors = is_matrix_of_vectors ? x : x.reshape({x.size(0), -1, x.size(-1)}).contiguous();
    const at::Tensor y = x.new_empty(vectors.sizes());
    return fill<kernels::rotate>(y, vectors, positions.contiguous(), theta, direction).view(x.sizes());
  }
  const std::int64_t half = x.size(-1) / 2;
  std::vector<std::int64_t> shape(x.dim(), 1);
  shape.front() = x.size(0);
  shape.back() = half;
  const at::Tensor angle = angles(positions, theta, 1 / static_cast<double>(half), half).view(shape);
  const at::ScalarType wide = at::toOpMathType(x.scalar_type());
  const at::Tensor cos = angle.cos().to(wide), sin = angle.sin().mul_(direction).to(wide);
  const at::Tensor first = widen(x.narrow(-1, 0, half)), second = widen(x.narrow(-1, half, half));
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1).to(x.scalar_type());
}

at::Tensor rotate_first(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated,
                        double direction) {
  const std::int64_t rest = x.size(-2) - rotated;
  const at::Tensor turned = rotate(x.narrow(-2, 0, rotated), positions, theta, direction);
  return rest > 0 ? at::cat({turned, x.narrow(-2, rotated, rest)}, -2) : turned;
}

}  // namespace

PackedSequences pack_sequences(std::vector<std::int64_t> offsets, const at::Device& device) {
  BRAID_CHECK(!offsets.empty() && offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end()),
              "sequence offsets must start at 0 and never decrease");
  const std::vector<int> chunks = chunks_of(offsets);
  const std::int64_t tokens = offsets.back(), count = static_cast<std::int64_t>(offsets.size());
  // All in one copy to the device, which costs less than four: chunks, offsets, sequences, positions.
  const std::int64_t first_offset = static_cast<std::int64_t>(chunks.size());
  const std::int64_t first_sequence = first_offset + (count + 1) / 2 * 2;  // int64 numbers have even places
  const std::int64_t first_position = first_sequence + 2 * tokens, total = first_position + 2 * tokens;
  const at::Tensor host = at::empty({total}, at::TensorOptions(at::kInt).pinned_memory(device.is_cuda()));
  int* const numbers = host.data_ptr<int>();
  std::copy(chunks.begin(), chunks.end(), numbers);
  int* const gap = std::copy(offsets.begin(), offsets.end(), numbers + first_offset);
  std::fill(gap, numbers + first_sequence, 0);
  const at::Tensor sequence_of = longs(host, first_sequence, tokens), position_of = longs(host, first_position, tokens);
  PackedSequences packed;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], length = offsets[i + 1] - begin;
    packed.max_length = std::max(packed.max_length, length);
    std::fill_n(sequence_of.data_ptr<std::int64_t>() + begin, length, static_cast<std::int64_t>(i));
    std::iota(position_of.data_ptr<std::int64_t>() + begin, position_of.data_ptr<std::int64_t>() + begin + length, 0);
  }
  const at::Tensor on_device = upload(host, device);
  packed.chunks = on_device.narrow(0, 0, first_offset).view({-1, 4});
  packed.cu_seqlens = on_device.narrow(0, first_offset, count);
  packed.sequence_of = longs(on_device, first_sequence, tokens);
  packed.position_of = longs(on_device, first_position, tokens);
  packed.offsets = std::move(offsets);
  return packed;
}

at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated) {
  BRAID_CHECK_EQ(x.size(-1) % 2, 0, "rotary_embedding needs an even number of channels");
  BRAID_CHECK_EQ(x.size(0), positions.size(0), "number of positions in rotary_embedding");
  BRAID_CHECK(x.dim() >= 3 && rotated >= 0 && rotated <= x.size(-2), "rotary_embedding of {} vectors", rotated);
  return differentiable(
      "RotaryEmbeddingBackward", {x}, [&] { return rotate_first(x, positions, theta, rotated, 1); },
      [positions, theta, rotated](const at::Tensor& grad) {
        return rotate_first(grad, positions, theta, rotated, -1);
      });
}

at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype) {
  const std::int64_t half = width / 2;
  BRAID_CHECK(width % 2 == 0 && half > 1, "{} channels do not hold sines and cosines of at least two waves", width);
  const at::Tensor angle = angles(positions, 10000, 1 / static_cast<double>(half - 1), half);
  return at::cat({angle.sin(), angle.cos()}, 1).to(dtype);
}

}  // namespace braid
