// Reading boxes of a distributed checkpoint's tensors from their chunks.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include "ckpt/dist_checkpoint.h"
#include "ckpt/tensor_io.h"

namespace braid {
namespace {

constexpr std::int64_t kSlabBytes = 64 << 20;

// Empty if they do not intersect.
Slab intersection(const Slab& a, const Slab& b) {
  Slab common = a;
  for (std::size_t dim = 0; dim < a.begin.size(); ++dim) {
    common.begin[dim] = std::max(a.begin[dim], b.begin[dim]);
    const std::int64_t end = std::min(a.begin[dim] + a.size[dim], b.begin[dim] + b.size[dim]);
    common.size[dim] = std::max<std::int64_t>(end - common.begin[dim], 0);
  }
  return common;
}

std::size_t most_cut_dim(const DistTensor& tensor) {
  std::size_t most_cut = 0, most_begins = 0;
  for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    std::set<std::int64_t> begins;
    for (const StoredChunk& chunk : tensor.chunks) begins.insert(chunk.begin[dim]);
    if (begins.size() > most_begins) most_cut = dim, most_begins = begins.size();
  }
  return most_cut;
}

}  // namespace

const DistCheckpoint::ChunkOrder& DistCheckpoint::chunk_order(const std::string& key, const DistTensor& tensor) {
  const auto known = chunk_orders_.find(key);
  if (known != chunk_orders_.end()) return known->second;
  const std::vector<Problem> problems = coverage_problems({.tensors = {{key, tensor}}});
  if (!problems.empty())
    throw DataError(fmt::format("{}: '{}' cannot be read: {} ({})", folder_, key, problems[0].what, problems[0].where));
  ChunkOrder order{.dim = most_cut_dim(tensor)};
  for (const StoredChunk& chunk : tensor.chunks) order.chunks.push_back(&chunk);
  if (tensor.shape.empty()) return chunk_orders_.emplace(key, std::move(order)).first->second;
  std::ranges::sort(order.chunks, {}, [&](const StoredChunk* chunk) { return chunk->begin[order.dim]; });
  std::int64_t latest = 0;
  for (const StoredChunk* chunk : order.chunks) {
    latest = std::max(latest, chunk->begin[order.dim] + chunk->size[order.dim]);
    order.latest_end.push_back(latest);
  }
  return chunk_orders_.emplace(key, std::move(order)).first->second;
}

// All chunks that intersect elements [begin, end) of the order's dimension.
std::span<const StoredChunk* const> DistCheckpoint::ChunkOrder::between(std::int64_t begin, std::int64_t end) const {
  const auto first = std::upper_bound(latest_end.begin(), latest_end.end(), begin) - latest_end.begin();
  const auto last = std::partition_point(chunks.begin() + first, chunks.end(),
                                         [&](const StoredChunk* chunk) { return chunk->begin[dim] < end; });
  return {chunks.begin() + first, last};
}

std::int64_t DistCheckpoint::data_offset(const std::string& key, StoredDtype dtype, const StoredChunk& chunk) {
  const auto known = data_offsets_.find(&chunk);
  if (known != data_offsets_.end()) return known->second;
  const ArchiveSource source = source_of(file(chunk.part.file), chunk.part, key);
  const std::int64_t offset = chunk.part.offset + braid::data_offset(source, dtype, chunk.size);
  data_offsets_.emplace(&chunk, offset);
  return offset;
}

void DistCheckpoint::read(const std::string& key, const std::vector<std::int64_t>& begin, at::Tensor to) {
  const auto found = metadata_.tensors.find(key);
  if (found == metadata_.tensors.end()) throw DataError(fmt::format("{} has no tensor '{}'", folder_, key));
  const DistTensor& tensor = found->second;
  const Slab wanted{begin, to.sizes().vec()};
  if (!is_inside(wanted, tensor.shape))
    throw DataError(fmt::format("{}: '{}' has shape {}, which does not contain the box of {} at {}", folder_, key,
                                shape_text(tensor.shape), shape_text(wanted.size), shape_text(begin)));
  if (to.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const ChunkOrder& order = chunk_order(key, tensor);
  const std::span<const StoredChunk* const> chunks =
      begin.empty() ? order.chunks : order.between(begin[order.dim], begin[order.dim] + wanted.size[order.dim]);
  std::int64_t filled = 0;
  for (const StoredChunk* chunk : chunks) {
    const Slab common = intersection(wanted, {chunk->begin, chunk->size});
    if (num_elements(common.size) == 0) continue;
    at::Tensor part = to;
    Slab in_chunk = common;
    for (std::size_t dim = 0; dim < begin.size(); ++dim) {
      part = part.narrow(static_cast<std::int64_t>(dim), common.begin[dim] - begin[dim], common.size[dim]);
      in_chunk.begin[dim] -= chunk->begin[dim];
    }
    const std::int64_t offset = data_offset(key, tensor.dtype, *chunk);
    read_box(file(chunk->part.file), offset, chunk->size, in_chunk.begin, tensor.dtype, part);
    filled += part.numel();
  }
  BRAID_CHECK_EQ(filled, to.numel(), "elements of {}, whose chunks cover it", key);
}

// Fills `to` from the box at `begin` in an array of shape `stored` that lies at `offset`, row by row along its first
// dimension, as many rows at once as the buffer holds. If rows are long and only a part of each is needed, it recurses
// into the rows.
void DistCheckpoint::read_box(CheckedFile& file, std::int64_t offset, std::span<const std::int64_t> stored,
                              std::span<const std::int64_t> begin, StoredDtype dtype, const at::Tensor& to) {
  constexpr std::int64_t kOne[] = {1}, kStart[] = {0};
  if (stored.empty()) return read_box(file, offset, kOne, kStart, dtype, to.unsqueeze(0));
  const std::span<const std::int64_t> row_shape = stored.subspan(1);
  const std::int64_t row_bytes = num_elements(row_shape) * bytes_of(dtype);
  const bool whole_rows = std::equal(row_shape.begin(), row_shape.end(), to.sizes().begin() + 1);
  const bool direct = whole_rows && to.is_contiguous() && to.is_cpu() && to.scalar_type() == scalar_type(dtype);
  const std::int64_t rows = to.size(0);
  offset += begin[0] * row_bytes;
  if (direct) {
    file.read(offset, {static_cast<std::byte*>(to.data_ptr()), to.nbytes()});
    to.unsafeGetTensorImpl()->bump_version();  // cached fp8 weights are recomputed when the version changes
    bytes_read_ += rows * row_bytes;
    return;
  }
  if (!row_shape.empty() && (rows == 1 || row_bytes > (whole_rows ? kSlabBytes : kChecksumBlock))) {
    for (std::int64_t row = 0; row < rows; ++row)
      read_box(file, offset + row * row_bytes, row_shape, begin.subspan(1), dtype, to.select(0, row));
    return;
  }
  std::vector<std::int64_t> slab_shape(stored.begin(), stored.end());
  for (std::int64_t row = 0; row < rows; row += slab_shape[0]) {
    slab_shape[0] = std::min(std::max<std::int64_t>(kSlabBytes / row_bytes, 1), rows - row);
    const auto slab_bytes = static_cast<std::size_t>(slab_shape[0] * row_bytes);
    if (scratch_.size() < slab_bytes) scratch_.resize(slab_bytes);
    file.read(offset + row * row_bytes, std::span(scratch_).first(slab_bytes));
    bytes_read_ += static_cast<std::int64_t>(slab_bytes);
    at::Tensor slab = at::from_blob(scratch_.data(), slab_shape, scalar_type(dtype));
    for (std::size_t dim = 1; dim < stored.size(); ++dim)
      slab = slab.narrow(static_cast<std::int64_t>(dim), begin[dim], to.size(static_cast<std::int64_t>(dim)));
    to.narrow(0, row, slab_shape[0]).copy_(slab);
  }
}

}  // namespace braid
