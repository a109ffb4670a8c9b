#include "ops/packed_sequences.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
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

}  // namespace braid
