#include "ops/packed_sequences.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/error.h"
#include "tensor/upload.h"

namespace braid {
namespace {

at::Tensor chunks_of(const std::vector<std::int64_t>& offsets) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int64_t begin = offsets[i], end = offsets[i + 1]; begin < end; begin += kScanChunk) {
      const std::int64_t tokens = std::min(kScanChunk, end - begin);
      const int place = (begin == offsets[i] ? 1 : 0) + (begin + tokens == end ? 2 : 0);
      numbers.insert(numbers.end(), {static_cast<int>(begin), static_cast<int>(tokens), static_cast<int>(i), place});
    }
  return at::tensor(numbers, at::kInt).view({-1, 4});
}

}  // namespace

PackedSequences pack_sequences(std::vector<std::int64_t> offsets, const at::Device& device) {
  BRAID_CHECK(!offsets.empty() && offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end()),
              "sequence offsets must start at 0 and never decrease");
  PackedSequences packed;
  std::vector<int> narrow(offsets.begin(), offsets.end());
  std::vector<std::int64_t> sequence_of, position_of;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t length = offsets[i + 1] - offsets[i];
    packed.max_length = std::max(packed.max_length, length);
    for (std::int64_t position = 0; position < length; ++position) {
      sequence_of.push_back(static_cast<std::int64_t>(i));
      position_of.push_back(position);
    }
  }
  packed.cu_seqlens = upload(at::tensor(narrow, at::kInt), device);
  packed.sequence_of = upload(at::tensor(sequence_of, at::kLong), device);
  packed.position_of = upload(at::tensor(position_of, at::kLong), device);
  packed.chunks = upload(chunks_of(offsets), device);
  packed.offsets = std::move(offsets);
  return packed;
}

}  // namespace braid
