#include "log/append_only_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/file.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace braid {
namespace {

// Truncates the file under a lock that lasts while this process has it open. File systems without locks give no
// protection.
void empty_alone(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw ConfigError({fmt::format("another run writes '{}' now", path), path,
                       "wait until it ends, or give this run another folder"});
  if (::ftruncate(fd, 0) != 0) throw_errno(fmt::format("cannot empty '{}'", path));
}

}  // namespace

AppendOnlyFile::AppendOnlyFile(std::string path, Start start) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (start == Start::New ? O_EXCL : 0), 0666);
  if (fd_ < 0) throw_errno(fmt::format("cannot open '{}' for writing", path_));
  try {
    size_ = ::lseek(fd_, 0, SEEK_END);
    if (size_ < 0) throw_errno(fmt::format("'{}' is not a regular file", path_));
    if (start != Start::Empty) return;
    empty_alone(fd_, path_);
    size_ = 0;
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

AppendOnlyFile::~AppendOnlyFile() { ::close(fd_); }

void AppendOnlyFile::append(std::string_view text, std::string_view ending) {
  const std::string bytes = std::string(text).append(ending);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written =
        ::pwrite(fd_, bytes.data() + done, bytes.size() - done, size_ + static_cast<std::int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) take_back(ending);
    done += static_cast<std::size_t>(written);
  }
  size_ += static_cast<std::int64_t>(text.size());
}

// Restores the file's contents from before the text that did not fit.
void AppendOnlyFile::take_back(std::string_view ending) {
  const int reason = errno;
  const bool is_back = ::ftruncate(fd_, size_) == 0 && ::pwrite(fd_, ending.data(), ending.size(), size_) >= 0;
  errno = is_back ? reason : errno;
  throw_errno(fmt::format("cannot write '{}'", path_));
}

char AppendOnlyFile::last_char() const {
  char last = 0;
  if (::pread(fd_, &last, 1, size_ - 1) != 1) throw_errno(fmt::format("cannot read '{}'", path_));
  return last;
}

}  // namespace braid
