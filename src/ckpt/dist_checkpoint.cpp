#include "ckpt/dist_checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <sys/stat.h>

#include <new>

#include "base/strings.h"
#include "base/utf8.h"
#include "ckpt/tensor_io.h"

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

// Strides of dimensions with at most one element are irrelevant.
bool is_contiguous(const PickledTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) return false;
  if (num_elements(tensor.shape) == 0) return true;
  const std::vector<std::int64_t> wanted = contiguous_strides(tensor.shape);
  for (std::size_t dim = 0; dim < wanted.size(); ++dim)
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != wanted[dim]) return false;
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

ArchiveSource source_of(CheckedFile& file, const FileRange& part, const std::string& key) {
  return {.name = fmt::format("{} ({} at byte {})", file.path(), in_quotes(key), part.offset),
          .size = part.length,
          .read = [&file, begin = part.offset](std::int64_t offset, std::span<std::byte> to) {
            file.read(begin + offset, to);
          }};
}

std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size) {
  ArchiveReader archive(source);
  const PickleValue value = archive.value();
  const std::optional<PickledTensor> tensor = as_tensor(value);
  if (!tensor) throw DataError(fmt::format("{} is not a plain tensor: {}", source.name, to_text(value, 200)));
  if (tensor->dtype != dtype || tensor->shape != size)
    throw DataError(fmt::format("{} is {} of shape {}, but the index says {} of shape {}", source.name,
                                name_of(tensor->dtype), shape_text(tensor->shape), name_of(dtype), shape_text(size)));
  if (!is_contiguous(*tensor))
    throw DataError(fmt::format("{} has strides {}, but only contiguous tensors can be read", source.name,
                                shape_text(tensor->strides)));
  const ArchiveReader::Record record = archive.record("data/" + tensor->storage);
  const std::int64_t stored = record.size / bytes_of(dtype);
  if (record.size % bytes_of(dtype) != 0 || stored != tensor->storage_elements || tensor->storage_offset < 0 ||
      tensor->storage_offset > stored || num_elements(size) > stored - tensor->storage_offset)
    throw DataError(fmt::format("{}: {} bytes of data do not hold {} {} at {}", source.name, record.size,
                                num_elements(size), name_of(dtype), tensor->storage_offset));
  return record.offset + tensor->storage_offset * bytes_of(dtype);
}

PickleValue object_in(const ArchiveSource& source, const std::string& key) {
  const PickleValue value = ArchiveReader(source).value();
  if (!is_sharded_object(key)) return value;
  const PickleList* list = as<PickleList>(value);
  if (!list || list->items.size() != 1)
    throw DataError(fmt::format("{}: the object is not stored as a list of one element", source.name));
  return list->items[0];
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

// Appends through one buffer and bypasses the page cache if the file system allows it: with a checkpoint's worth of
// dirty pages the kernel is several times slower and takes memory from the training. Checksums are computed right after
// copying, while the data is in the processor's cache.
class DistWriter::File {
 public:
  File(std::string path, const std::atomic<bool>* cancelled)
      : path_(std::move(path)),
        cancelled_(cancelled),
        buffer_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBuffer))) {
    if (!buffer_) throw std::bad_alloc();
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    fd_ = Fd(::open(path_.c_str(), flags | O_DIRECT, 0666));
    if (!fd_ && errno == EINVAL) fd_ = Fd(::open(path_.c_str(), flags, 0666));
    if (!fd_) throw_errno(fmt::format("cannot create {}", path_));
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (!complete_) ::unlink(path_.c_str());
  }

  std::int64_t size() const { return size_; }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t count = std::min({bytes.size(), kBuffer - filled_, kCopy});
      std::memcpy(buffer_.get() + filled_, bytes.data(), count);
      checksums_.add({buffer_.get() + filled_, count});
      filled_ += count;
      size_ += static_cast<std::int64_t>(count);
      bytes = bytes.subspan(count);
      if (filled_ == kBuffer) flush();
    }
  }

  FileChecksums finish() {
    if (filled_ % kAlignment != 0) leave_direct();
    flush();
    if (::fsync(fd_.get()) != 0) fail();
    check_place();
    if (::close(fd_.release()) != 0) fail();
    complete_ = true;
    return checksums_.finish();
  }

 private:
  static constexpr std::size_t kAlignment = 4096, kBuffer = 8 << 20, kCopy = 256 << 10;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  [[noreturn]] void fail() const { throw_errno(fmt::format("cannot write {}", path_)); }
  bool leave_direct() {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) == 0;
  }

  // A run that lost its lock must not hand in files in a folder that another run has created since.
  void check_place() const {
    struct stat own {
    }, there{};
    if (::fstat(fd_.get(), &own) != 0) fail();
    if (::stat(path_.c_str(), &there) != 0 || own.st_ino != there.st_ino || own.st_dev != there.st_dev)
      throw DataError(
          fmt::format("{} was removed or replaced while it was written; does another run save there?", path_));
  }

  void flush() {
    if (cancelled_ && *cancelled_) throw std::runtime_error(fmt::format("writing {} was cancelled", path_));
    std::span<const std::byte> bytes(buffer_.get(), std::exchange(filled_, 0));
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      // A partial write of the buffer also leaves an unaligned rest.
      if (written < 0 && errno == EINVAL && leave_direct()) continue;
      if (written < 0) fail();
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  std::string path_;
  const std::atomic<bool>* cancelled_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::size_t filled_ = 0;
  Fd fd_;
  bool complete_ = false;
  std::int64_t size_ = 0;
  ChecksumStream checksums_;
};

DistWriter::DistWriter(const std::string& folder, int writer, const std::atomic<bool>* cancelled)
    : folder_(folder), file_name_(fmt::format("__{}_0.distcp", writer)), cancelled_(cancelled) {}

DistWriter::~DistWriter() = default;

DistWriter::File& DistWriter::file() {
  BRAID_CHECK(!finished_, "{} is finished", file_name_);
  if (!file_) file_ = std::make_unique<File>(folder_ + "/" + file_name_, cancelled_);
  return *file_;
}

FileRange DistWriter::write_part(const PickleValue& value, std::optional<std::span<const std::byte>> storage) {
  FileRange part{.file = file_name_, .offset = file().size()};
  write_archive(value, storage, [&](std::span<const std::byte> bytes) { file().append(bytes); });
  bytes_written_ = file().size();
  part.length = bytes_written_ - part.offset;
  return part;
}

void DistWriter::add_object(const std::string& key, const PickleValue& value) {
  check_new_object(key);
  metadata_.objects[key] = write_part(is_sharded_object(key) ? pickle_list({value}) : value, std::nullopt);
}

void DistWriter::add_archive(const std::string& key, std::string_view bytes) {
  check_new_object(key);
  metadata_.objects[key] = {file_name_, file().size(), std::ssize(bytes)};
  file().append(std::as_bytes(std::span(bytes)));
  bytes_written_ = file().size();
}

void DistWriter::check_new_object(const std::string& key) const {
  BRAID_CHECK(metadata_.tensors.empty(), "the object {} must come before all tensors", key);
  BRAID_CHECK(!metadata_.objects.count(key), "the object {} is added twice", key);
}

void DistWriter::add_tensor(const std::string& key, const std::vector<std::int64_t>& shape,
                            const std::vector<std::int64_t>& begin, const at::Tensor& data) {
  BRAID_CHECK(data.is_cpu() && data.is_contiguous(), "the data of {} must be contiguous and on the CPU", key);
  const std::vector<std::int64_t> size = data.sizes().vec();
  BRAID_CHECK(is_inside({begin, size}, shape), "a box of {} at {} in {} {}", shape_text(size), shape_text(begin), key,
              shape_text(shape));
  const StoredDtype dtype = stored_dtype(data.scalar_type());
  DistTensor& tensor = metadata_.tensors.try_emplace(key, DistTensor{.dtype = dtype, .shape = shape}).first->second;
  BRAID_CHECK(tensor.dtype == dtype && tensor.shape == shape, "{} has chunks of different tensors", key);
  const PickleValue value = pickle_tensor({.dtype = dtype,
                                           .shape = size,
                                           .strides = contiguous_strides(size),
                                           .storage = "0",
                                           .storage_elements = data.numel()});
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(data.data_ptr()), data.nbytes());
  tensor.chunks.push_back({.begin = begin, .size = size, .part = write_part(value, bytes)});
}

void DistWriter::finish() {
  BRAID_CHECK(!finished_, "{} is finished", file_name_);
  if (file_) checksums_[file_name_] = file_->finish();
  file_.reset();
  finished_ = true;
}

}  // namespace braid
