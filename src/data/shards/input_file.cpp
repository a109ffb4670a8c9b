#include "data/shards/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace braid {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // A pipe could block open() or never end.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const bool is_lasting = is_lasting_error(errno);
    const std::string what = fmt::format("cannot read '{}': {}", path_, std::strerror(errno));
    if (is_lasting) throw ReadError(what);
    throw SystemReadError(what);
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw ReadError(fmt::format("cannot read '{}': not a regular file", path_));
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(fd_); }

std::string InputFile::read(std::uint64_t offset, std::size_t size) const {
  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd_, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
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

}  // namespace braid
