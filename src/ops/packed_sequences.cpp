#include "ops/packed_sequences.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "tensor/upload.h"

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

// Where each part of the numbers begins, in units of 4 bytes: one copy to the device costs less than four.
struct Places {
  std::int64_t chunks = 0, cu_seqlens, sequence_of, position_of, end;

  Places(std::int64_t chunk_numbers, std::int64_t offsets, std::int64_t tokens)
      : cu_seqlens(chunk_numbers),
        sequence_of(chunk_numbers + (offsets + 1) / 2 * 2),  // int64 numbers have even places
        position_of(sequence_of + 2 * tokens),
        end(position_of + 2 * tokens) {}
};

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
  const Places places(static_cast<std::int64_t>(chunks.size()), count, tokens);
  const at::Tensor host = at::empty({places.end}, at::TensorOptions(at::kInt).pinned_memory(device.is_cuda()));
  int* const numbers = host.data_ptr<int>();
  std::copy(chunks.begin(), chunks.end(), numbers + places.chunks);
  std::copy(offsets.begin(), offsets.end(), numbers + places.cu_seqlens);
  const at::Tensor sequence_of = longs(host, places.sequence_of, tokens),
                   position_of = longs(host, places.position_of, tokens);
  PackedSequences packed;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], length = offsets[i + 1] - begin;
    packed.max_length = std::max(packed.max_length, length);
    std::fill_n(sequence_of.data_ptr<std::int64_t>() + begin, length, static_cast<std::int64_t>(i));
    std::iota(position_of.data_ptr<std::int64_t>() + begin, position_of.data_ptr<std::int64_t>() + begin + length, 0);
  }
  const at::Tensor on_device = upload(host, device);
  packed.chunks = on_device.narrow(0, places.chunks, places.cu_seqlens).view({-1, 4});
  packed.cu_seqlens = on_device.narrow(0, places.cu_seqlens, count);
  packed.sequence_of = longs(on_device, places.sequence_of, tokens);
  packed.position_of = longs(on_device, places.position_of, tokens);
  packed.offsets = std::move(offsets);
  return packed;
}

}  // namespace braid
