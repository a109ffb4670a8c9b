// A file that only grows, for logs that must survive the end of their process: what append() was given is with the
// operating system when it returns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

class GrowingFile {
 public:
  enum class Start { Empty, AtEnd, New };  // drop what is there, go on after it, or refuse to open if anything is

  GrowingFile(std::string path, Start start);
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;
  ~GrowingFile();

  // `ending` stands at the end of the file until the next append, which overwrites it and must not be shorter. Where
  // there is no room, the file stays as it was.
  void append(std::string_view text, std::string_view ending = {});

  std::int64_t size() const { return size_; }  // without the ending
  char last_char() const;                      // of a file that is not empty
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void take_back(std::string_view ending);

  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace braid
