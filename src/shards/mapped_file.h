// The bytes of a regular file, mapped read-only. A file that another process shortens while it is mapped ends this
// process, so shards must not be rewritten in place during a run.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace braid {

class MappedFile {
 public:
  explicit MappedFile(std::string path);  // DataError when it cannot be read or is not a regular file
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace braid
