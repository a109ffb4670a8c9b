// Files of data sets, read by position.
#pragma once

#include "base/socket.h"

namespace braid {

// The system failed (EIO, ESTALE, EMFILE, ENOMEM …), or the file is missing or shorter than its index says. Another
// rank may read the same file without an error, so code that skips damaged samples must not skip these.
struct ReadError : DataError {
  using DataError::DataError;
};

// The system failed, and may not fail the next time. A file that is missing or has been cut stays so.
struct SystemReadError : ReadError {
  using ReadError::ReadError;
};

class InputFile {
 public:
  explicit InputFile(std::string path);  // ReadError when it cannot be opened or is not a regular file

  // ReadError when it cannot be read or has become shorter. May be called from several threads at once.
  std::string read(std::uint64_t offset, std::size_t size) const;
  std::uint64_t size() const { return size_; }  // when it was opened
  void check_size() const;                      // ReadError if it has become shorter since
  int descriptor() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
  std::uint64_t size_ = 0;
};

}  // namespace braid
