#include "data/shards/input_file.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/files.h"

namespace braid {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // A pipe could block open() or never end.
  fd_ = Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) {
    const int error = errno;
    const std::string what = fmt::format("cannot read '{}': {}", path_, std::strerror(error));
    if (is_lasting_error(error)) throw ReadError(what);
    throw SystemReadError(what);
  }
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode))
    throw ReadError(fmt::format("cannot read '{}': not a regular file", path_));
  size_ = static_cast<std::uint64_t>(info.st_size);
}

std::string InputFile::read(std::uint64_t offset, std::size_t size) const {
  std::string bytes(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::pread(fd_.get(), bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw SystemReadError(fmt::format("cannot read '{}' at byte {}: {}", path_, offset, std::strerror(errno)));
    if (got == 0)
      throw ReadError(fmt::format("'{}' ends at byte {}, but {} bytes at byte {} are needed: it has been cut", path_,
                                  offset + done, size, offset));
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

void InputFile::check_size() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0)
    throw SystemReadError(fmt::format("cannot read '{}': {}", path_, std::strerror(errno)));
  if (static_cast<std::uint64_t>(info.st_size) < size_)
    throw ReadError(
        fmt::format("'{}' has {} bytes, but had {} when it was opened: it has been cut", path_, info.st_size, size_));
}

}  // namespace braid
