#include "ckpt/dist_checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "ckpt/checked_file.h"
#include "ckpt/file_names.h"
#include "ckpt/tensor_io.h"
#include "plan/param_spec.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSlabBytes = 64 << 20;
constexpr std::size_t kOpenFiles = 64;

bool has_file(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string printed(const nlohmann::json& value) {
  return visible_text(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), 100);
}

bool is_inside(const Slab& box, const std::vector<std::int64_t>& shape) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (box.begin[dim] < 0 || box.begin[dim] > shape[dim] || box.size[dim] > shape[dim] - box.begin[dim]) return false;
  return true;
}

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

void check_format(const std::string& text, const std::string& path) {
  const nlohmann::json format = parse_flat_json(text, path);
  if (!format.is_object() || !format.contains("sharded_backend"))
    throw DataError(fmt::format("{} does not name the format of the checkpoint", path));
  const nlohmann::json& backend = format["sharded_backend"];
  const nlohmann::json version = format.value("sharded_backend_version", nlohmann::json(1));
  if (backend != "torch_dist" || version != 1)
    throw DataError(
        fmt::format("{}: the checkpoint is in format {} version {}, only \"torch_dist\" version 1 can be read", path,
                    printed(backend), printed(version)));
}

DistCheckpoint::DistCheckpoint(std::string folder, ReaderShare share) : folder_(std::move(folder)) {
  const auto path = [&](const char* name) { return folder_ + "/" + name; };
  if (!has_file(path(kIndexFile)))
    throw DataError(
        fmt::format("{} has no {}: it is not a distributed checkpoint, or it is incomplete", folder_, kIndexFile));
  if (has_file(path(kChecksumFile)))
    checksums_ = parse_checksums(read_whole(path(kChecksumFile), std::nullopt, kMaxIndexFile), path(kChecksumFile));
  if (has_file(path(kFormatFile)))
    check_format(read_whole(path(kFormatFile), checksums_of_file(kFormatFile), kMaxSmallFile), path(kFormatFile));
  metadata_ =
      read_metadata(read_whole(path(kIndexFile), checksums_of_file(kIndexFile), kMaxIndexFile), path(kIndexFile));
  if (metadata_.has_checksums && !checksums_)
    throw DataError(fmt::format("{} is missing; the checkpoint is damaged", path(kChecksumFile)));
  check_files(share);
}

std::optional<FileChecksums> DistCheckpoint::checksums_of_file(const std::string& name) const {
  if (!checksums_) return std::nullopt;
  const auto found = checksums_->find(name);
  if (found == checksums_->end())
    throw DataError(fmt::format("{}/{} has no entry for {}; the checkpoint is damaged", folder_, kChecksumFile, name));
  return found->second;
}

void DistCheckpoint::check_files(const ReaderShare& share) const {
  std::map<std::string, FileRange> last_parts;
  const auto add = [&](const FileRange& part) {
    FileRange& last = last_parts.try_emplace(part.file, part).first->second;
    if (part.offset + part.length > last.offset + last.length) last = part;
  };
  for (const auto& [key, part] : metadata_.objects) add(part);
  for (const auto& [key, tensor] : metadata_.tensors)
    for (const StoredChunk& chunk : tensor.chunks) add(chunk.part);
  int next = 0;
  const auto is_mine = [&] { return next++ % share.readers == share.reader; };
  for (const auto& [name, last] : last_parts) {
    if (!is_mine()) continue;
    const CheckedFile file(folder_ + "/" + name, checksums_of_file(name));
    if (last.offset + last.length > file.size())
      throw DataError(fmt::format("{} ends at byte {}, but the index refers to bytes up to {}; the file is truncated",
                                  file.path(), file.size(), last.offset + last.length));
  }
  if (!checksums_) return;
  for (const auto& [name, sums] : *checksums_)
    if (!last_parts.count(name) && is_mine()) CheckedFile(folder_ + "/" + name, sums);
}

bool DistCheckpoint::has_common() const { return has_file(folder_ + "/" + kCommonFile); }

std::string DistCheckpoint::common_bytes() const {
  return read_whole(folder_ + "/" + kCommonFile, checksums_of_file(kCommonFile), kMaxCommonFile);
}

PickleValue DistCheckpoint::common() const { return read_archive(common_bytes(), folder_ + "/" + kCommonFile); }

CheckedFile& DistCheckpoint::file(const std::string& name) {
  std::unique_ptr<CheckedFile>& file = files_[name];
  if (!file) file = std::make_unique<CheckedFile>(folder_ + "/" + name, checksums_of_file(name));
  if (!awake_.empty() && awake_.front() == file.get()) return *file;
  std::erase(awake_, file.get());
  awake_.push_front(file.get());
  if (awake_.size() > kOpenFiles) {
    awake_.back()->sleep();
    awake_.pop_back();
  }
  return *file;
}

PickleValue DistCheckpoint::read_object(const std::string& key) {
  const auto found = metadata_.objects.find(key);
  if (found == metadata_.objects.end()) throw DataError(fmt::format("{} has no object '{}'", folder_, key));
  return object_in(source_of(file(found->second.file), found->second, key), key);
}

std::string DistCheckpoint::object_bytes(const std::string& key) {
  const FileRange& part = metadata_.objects.at(key);
  if (part.length > kMaxCommonFile)
    throw DataError(fmt::format("{}/{}: the object {} has {}, more than any valid object", folder_, part.file,
                                in_quotes(key), readable_bytes(part.length)));
  std::string bytes(static_cast<std::size_t>(part.length), '\0');
  file(part.file).read(part.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

const DistCheckpoint::ChunkOrder& DistCheckpoint::chunk_order(const std::string& key, const DistTensor& tensor) {
  const auto known = chunk_orders_.find(key);
  if (known != chunk_orders_.end()) return known->second;
  const std::vector<Problem> problems = coverage_problems({.tensors = {{key, tensor}}});
  if (!problems.empty())
    throw DataError(fmt::format("{}: '{}' cannot be read: {} ({})", folder_, key, problems[0].what, problems[0].where));
  ChunkOrder order{.dim = most_cut_dim(tensor)};
  for (const StoredChunk& chunk : tensor.chunks) order.chunks.push_back(&chunk);
  if (tensor.shape.empty()) return chunk_orders_.emplace(key, std::move(order)).first->second;
  const auto by_begin = [&](const StoredChunk* a, const StoredChunk* b) {
    return a->begin[order.dim] < b->begin[order.dim];
  };
  std::sort(order.chunks.begin(), order.chunks.end(), by_begin);
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
    to.unsafeGetTensorImpl()->bump_version();  // fp8 copies of weights go by it
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

std::vector<std::string> DistCheckpoint::checksummed_files() const {
  std::vector<std::string> names;
  if (checksums_)
    for (const auto& [name, sums] : *checksums_)
      if (name != kIndexFile && name != kFormatFile && name != kCommonFile) names.push_back(name);
  return names;
}

std::vector<bool> DistCheckpoint::checked() const {
  std::vector<bool> all;
  for (const std::string& name : checksummed_files()) {
    const auto file = files_.find(name);
    if (file == files_.end())
      all.resize(all.size() + checksums_->at(name).blocks.size());
    else
      all.insert(all.end(), file->second->checked().begin(), file->second->checked().end());
  }
  return all;
}

void DistCheckpoint::check(const std::vector<bool>& wanted) {
  std::size_t place = 0;
  for (const std::string& name : checksummed_files())
    for (std::size_t block = 0; block < checksums_->at(name).blocks.size(); ++block)
      if (wanted.at(place++)) file(name).check_block(static_cast<std::int64_t>(block));
}

void DistCheckpoint::check_rest() {
  std::vector<bool> rest = checked();
  rest.flip();
  check(rest);
  if (checksums_ && has_common()) common_bytes();
}

}  // namespace braid
