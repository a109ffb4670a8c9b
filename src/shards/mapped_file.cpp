#include "shards/mapped_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace braid {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // A pipe could block open() or never end.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw DataError(fmt::format("cannot read '{}': {}", path_, std::strerror(errno)));
  struct stat info {};
  const bool is_file = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (is_file && info.st_size > 0) {
    size_ = static_cast<std::size_t>(info.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (!is_file) throw DataError(fmt::format("cannot read '{}': not a regular file", path_));
  if (data_ == MAP_FAILED) throw DataError(fmt::format("cannot map '{}': {}", path_, std::strerror(error)));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace braid
