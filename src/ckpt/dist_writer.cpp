#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/load.h"
#include "ckpt/torch_archive.h"

namespace braid {

// Appends; small parts are gathered, large ones go to the file as they are. Checksums are taken piece by piece, while
// the piece is in the processor's cache.
class DistWriter::File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) throw_errno(fmt::format("cannot create {}", path_));
    gathered_.reserve(kPiece);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
    if (!complete_) ::unlink(path_.c_str());
  }

  std::int64_t size() const { return size_; }

  void append(std::span<const std::byte> bytes) {
    size_ += std::ssize(bytes);
    while (!bytes.empty()) {
      const std::size_t count = std::min(bytes.size(), kPiece - gathered_.size());
      if (count == kPiece) {
        write(bytes.first(kPiece));
      } else {
        gathered_.insert(gathered_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
        if (gathered_.size() == kPiece) flush();
      }
      bytes = bytes.subspan(count);
    }
  }

  FileChecksums finish() {
    flush();
    if (::fsync(fd_) != 0) fail();
    if (::close(std::exchange(fd_, -1)) != 0) fail();
    complete_ = true;
    return checksums_.finish();
  }

 private:
  static constexpr std::size_t kPiece = 1 << 20;

  [[noreturn]] void fail() const { throw_errno(fmt::format("cannot write {}", path_)); }

  void flush() {
    write(gathered_);
    gathered_.clear();
  }

  void write(std::span<const std::byte> bytes) {
    checksums_.add(bytes);
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  std::string path_;
  int fd_ = -1;
  bool complete_ = false;
  std::int64_t size_ = 0;
  std::vector<std::byte> gathered_;
  ChecksumStream checksums_;
};

DistWriter::DistWriter(const std::string& folder, int writer)
    : folder_(folder), file_name_(fmt::format("__{}_0.distcp", writer)) {}

DistWriter::~DistWriter() = default;

DistWriter::File& DistWriter::file() {
  BRAID_CHECK(!finished_, "{} is finished", file_name_);
  if (!file_) file_ = std::make_unique<File>(folder_ + "/" + file_name_);
  return *file_;
}

FilePart DistWriter::write_part(const PickleValue& value, std::optional<std::span<const std::byte>> storage) {
  FilePart part{.file = file_name_, .offset = file().size()};
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
  BRAID_CHECK(metadata_.tensors.empty(), "the object {} comes after tensors", key);
  BRAID_CHECK(!metadata_.objects.count(key), "the object {} is there already", key);
}

void DistWriter::add_tensor(const std::string& key, const std::vector<std::int64_t>& shape,
                            const std::vector<std::int64_t>& begin, const at::Tensor& data) {
  BRAID_CHECK(data.is_cpu() && data.is_contiguous(), "what is stored of {}", key);
  const std::vector<std::int64_t> size = data.sizes().vec();
  BRAID_CHECK(begin.size() == shape.size() && size.size() == shape.size(), "a box of {} from {} on of {} {}",
              shape_text(size), shape_text(begin), key, shape_text(shape));
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    BRAID_CHECK(begin[dim] >= 0 && begin[dim] + size[dim] <= shape[dim], "a box of {} from {} on of {} {}",
                shape_text(size), shape_text(begin), key, shape_text(shape));
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
