#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <new>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt/dist_checkpoint.h"
#include "ckpt/tensor_io.h"

namespace braid {

// Appends through one buffer and bypasses the page cache if the file system allows it: with a checkpoint's worth of
// dirty pages the kernel is several times slower and takes memory from the training. Checksums are computed right after
// copying, while the data is in the processor's cache.
class DistWriter::File {
 public:
  File(std::string path, const std::atomic<bool>* cancelled)
      : path_(std::move(path)), cancelled_(cancelled),
        buffer_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBuffer))) {
    if (!buffer_) throw std::bad_alloc();
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    fd_ = Fd(::open(path_.c_str(), flags | O_DIRECT, 0666));
    if (!fd_ && errno == EINVAL) fd_ = Fd(::open(path_.c_str(), flags, 0666));
    if (!fd_) throw_errno(fmt::format("cannot create {}", path_));
  }
  File(const File&) = delete;
  ~File() {
    if (!complete_ && is_in_place()) ::unlink(path_.c_str());
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
    if (!is_in_place())
      throw DataError(
          fmt::format("{} was removed or replaced while it was written; does another run save there?", path_));
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

  // Whether the path still leads to this file. Another run may have taken over the folder and written its own.
  bool is_in_place() const {
    struct stat own {
    }, there{};
    return ::fstat(fd_.get(), &own) == 0 && ::stat(path_.c_str(), &there) == 0 && own.st_ino == there.st_ino &&
           own.st_dev == there.st_dev;
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
