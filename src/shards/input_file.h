// A regular file that is read by position. Unlike a mapped file, it may become shorter at any time: a mapping would end
// the process then.
#pragma once

#include <cstdint>
#include <string>

namespace braid {

class InputFile {
 public:
  explicit InputFile(std::string path);  // DataError when it cannot be read or is not a regular file
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  // Fewer bytes if the file ends before. May be called from several threads at once.
  std::string read(std::uint64_t offset, std::size_t size) const;
  std::uint64_t size() const { return size_; }  // when it was opened
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace braid
