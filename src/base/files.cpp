#include "base/files.h"

#include <unistd.h>

#include <sys/mman.h>

#include <cerrno>
#include <fstream>

#include "base/error.h"

namespace braid {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

fs::path nearest_existing(fs::path path) {
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

std::string reopenable(const std::string& path, const std::string& text) {
  if (!is_own_descriptor(path)) return path;
  const int fd = ::memfd_create("recipe", 0);  // inherited by child processes; freed when the last of them ends
  if (fd < 0) throw_errno("cannot buffer the text of " + path);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) throw_errno("cannot buffer the text of " + path);
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  return fmt::format("/proc/self/fd/{}", fd);
}

bool is_own_descriptor(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return (fs::exists(status) && !fs::is_regular_file(status)) || path.starts_with("/dev/fd/") ||
         path.starts_with("/dev/std") || path.starts_with("/proc/");
}

std::string without_end_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace braid
