#include "ckpt/checked_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "plan/param_spec.h"

namespace braid {

CheckedFile::CheckedFile(std::string path, std::optional<FileChecksums> checksums)
    : path_(std::move(path)), checksums_(std::move(checksums)) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0)
    throw DataError(fmt::format("cannot read {}: {}; the checkpoint is incomplete", path_, std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) throw DataError(fmt::format("{} is not a regular file", path_));
  size_ = info.st_size;
  const std::int64_t blocks = (size_ + kChecksumBlock - 1) / kChecksumBlock;
  if (checksums_ && (checksums_->size != size_ || std::ssize(checksums_->blocks) != blocks))
    throw DataError(
        fmt::format("{} has {} bytes, but {} were written; the checkpoint is damaged", path_, size_, checksums_->size));
  checked_.resize(static_cast<std::size_t>(blocks));
}

CheckedFile::~CheckedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void CheckedFile::sleep() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  cache_ = {};
}

void CheckedFile::read(std::int64_t offset, std::span<std::byte> to) {
  if (offset < 0 || offset > size_ || std::ssize(to) > size_ - offset)
    throw DataError(
        fmt::format("{} ends at byte {}; {} bytes at offset {} cannot be read", path_, size_, to.size(), offset));
  // A read that continues where the last large one ended is probably followed by another.
  const bool large = std::ssize(to) > kChecksumBlock;
  const bool goes_on = offset >= large_end_ && offset - large_end_ < 2 * kChecksumBlock;
  const std::int64_t wanted_end = large && goes_on ? size_ : offset + std::ssize(to);
  if (large && !goes_on) fetched_end_ = offset;
  if (large) large_end_ = offset + std::ssize(to);
  while (!to.empty()) {
    if (large) fetch_ahead(offset, wanted_end);
    const std::int64_t block = offset / kChecksumBlock, in_block = offset % kChecksumBlock;
    const std::int64_t count = std::min(block_bytes(block) - in_block, std::ssize(to));
    const std::span<std::byte> part = to.first(static_cast<std::size_t>(count));
    if (count == block_bytes(block))
      read_block(block, part);
    else
      std::memcpy(part.data(), cached_block(block).data() + in_block, part.size());
    offset += count;
    to = to.subspan(part.size());
  }
}

void CheckedFile::check_block(std::int64_t block) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(block_bytes(block)));
  read_block(block, bytes);
}

std::int64_t CheckedFile::block_bytes(std::int64_t block) const {
  return std::min(kChecksumBlock, size_ - block * kChecksumBlock);
}

void CheckedFile::open() {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd_ < 0) throw_errno(fmt::format("cannot read {}", path_));
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

// Makes the kernel read ahead while we check and copy, with more concurrent requests than it issues on its own.
void CheckedFile::fetch_ahead(std::int64_t offset, std::int64_t end) {
  constexpr std::int64_t kAhead = 64 << 20, kRequest = 8 << 20;
  if (fd_ < 0) open();
  for (; fetched_end_ < std::min(end, offset + kAhead); fetched_end_ += kRequest)
    ::posix_fadvise(fd_, fetched_end_, kRequest, POSIX_FADV_WILLNEED);
}

void CheckedFile::read_block(std::int64_t block, std::span<std::byte> to) {
  if (fd_ < 0) open();
  const std::int64_t begin = block * kChecksumBlock;
  for (std::size_t done = 0; done < to.size();) {
    const ssize_t got = ::pread(fd_, to.data() + done, to.size() - done, begin + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(fmt::format("cannot read {} at byte {}", path_, begin + static_cast<std::int64_t>(done)));
    if (got == 0)
      throw DataError(fmt::format("{} ended at byte {} while it was read, but had {} bytes before", path_,
                                  begin + static_cast<std::int64_t>(done), size_));
    done += static_cast<std::size_t>(got);
  }
  if (!checksums_) return;
  const FileChecksums got = checksums_of({reinterpret_cast<const char*>(to.data()), to.size()});
  if (got.blocks.at(0) != checksums_->blocks[block])
    throw DataError(
        fmt::format("{}: bytes {} to {} differ from what was written (wrong checksum); the checkpoint is damaged",
                    path_, begin, begin + std::ssize(to) - 1));
  checked_[block] = true;
}

std::span<const std::byte> CheckedFile::cached_block(std::int64_t block) {
  const auto found =
      std::find_if(cache_.begin(), cache_.end(), [&](const auto& entry) { return entry.block == block; });
  CachedBlock& entry =
      found != cache_.end()
          ? *found
          : *std::min_element(cache_.begin(), cache_.end(), [](auto& a, auto& b) { return a.used_at < b.used_at; });
  entry.used_at = ++cache_uses_;
  if (entry.block != block) {
    entry.block = -1;
    entry.bytes.resize(static_cast<std::size_t>(block_bytes(block)));
    read_block(block, entry.bytes);
    entry.block = block;
  }
  return entry.bytes;
}

std::string read_whole(const std::string& path, std::optional<FileChecksums> checksums, std::int64_t most) {
  CheckedFile file(path, std::move(checksums));
  if (file.size() > most)
    throw DataError(fmt::format("{} has {}, more than the limit of {} for such a file", path,
                                readable_bytes(file.size()), readable_bytes(most)));
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

namespace {

// Strides of dimensions with at most one element are irrelevant.
bool is_contiguous(const PickledTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) return false;
  if (num_elements(tensor.shape) == 0) return true;
  const std::vector<std::int64_t> wanted = contiguous_strides(tensor.shape);
  for (std::size_t dim = 0; dim < wanted.size(); ++dim)
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != wanted[dim]) return false;
  return true;
}

}  // namespace

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

}  // namespace braid
