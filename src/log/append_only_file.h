// An append-only file, for logs that must survive a crash of their process: when append() returns, the operating system
// has the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

class AppendOnlyFile {
 public:
  enum class Start { Empty, AtEnd, New };  // truncate, append, or fail if the file exists

  AppendOnlyFile(std::string path, Start start);
  AppendOnlyFile(const AppendOnlyFile&) = delete;
  AppendOnlyFile& operator=(const AppendOnlyFile&) = delete;
  ~AppendOnlyFile();

  // `ending` stays at the end of the file until the next append, which overwrites it and must not be shorter. If the
  // disk is full, the file stays unchanged.
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
