#include "base/files.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/socket.h"
#include "base/strings.h"

namespace braid {

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

fs::path nearest_existing(fs::path path) {
  while (!is_there(path) && path.has_relative_path()) path = path.parent_path();
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
  const fs::file_status status = status_of(path);
  return (fs::exists(status) && !fs::is_regular_file(status)) || path.starts_with("/dev/fd/") ||
         path.starts_with("/dev/std") || path.starts_with("/proc/");
}

std::string without_end_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

namespace {

std::string failure(const std::string& path, int error) {
  return fmt::format("cannot read '{}': {}", path, std::strerror(error));
}

// One attempt; the error of the system in `error`, if it may pass.
std::optional<std::string> try_to_read(const std::string& path, std::uintmax_t most_bytes, int& error) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe could block open()
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (!file && is_lasting_error(errno)) throw ConfigError({failure(path, errno), "", "check its name and permissions"});
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return error = errno, std::nullopt;
  if (!S_ISREG(info.st_mode))
    throw ConfigError({fmt::format("cannot read '{}': not a regular file", path), "", "check its name"});
  if (static_cast<std::uintmax_t>(info.st_size) > most_bytes)
    throw ConfigError({fmt::format("the file has {}, more than the {} allowed", readable_bytes(info.st_size),
                                   readable_bytes(static_cast<std::int64_t>(most_bytes))),
                       path, "check the path"});
  const auto size = static_cast<std::size_t>(info.st_size);
  std::string bytes(size + 1, '\0');  // room to notice that it has become longer
  for (std::size_t done = 0;;) {
    const ssize_t got = ::pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error = errno, std::nullopt;
    done += static_cast<std::size_t>(got);
    if (done > size || (got == 0 && done < size))
      throw DataError(fmt::format("'{}' changed while it was read; start again when it is complete", path));
    if (got == 0) break;
  }
  bytes.resize(size);
  return bytes;
}

// Repeats `attempt` until it sets no error.
template <class Attempt>
auto with_pauses(const std::string& path, const ReadPauses& pauses, const Attempt& attempt) {
  for (std::size_t i = 0;; ++i) {
    int error = 0;
    auto result = attempt(error);
    if (error == 0) return result;
    if (i == pauses.size())
      throw DataError(fmt::format("{} (tried {} times); the system failed, and the file itself may be intact",
                                  failure(path, error), pauses.size() + 1));
    std::this_thread::sleep_for(pauses[i]);
  }
}

}  // namespace

ReadPauses usual_read_pauses() {
  using namespace std::chrono_literals;
  return {100ms, 1s, 4s, 10s};
}

bool is_lasting_error(int error) {
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM || error == ELOOP ||
         error == ENAMETOOLONG || error == ENXIO;
}

FileKind kind_of_file(const std::string& path, const ReadPauses& pauses) {
  return with_pauses(path, pauses, [&](int& error) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode) ? FileKind::Folder : FileKind::Other;
    if (errno == ENOENT || errno == ENOTDIR) return FileKind::None;
    if (is_lasting_error(errno)) throw ConfigError({failure(path, errno), "", "check its name and permissions"});
    error = errno;
    return FileKind::None;
  });
}

std::optional<std::string> find_small_file(const std::string& path, std::uintmax_t most_bytes,
                                           const ReadPauses& pauses) {
  return with_pauses(path, pauses, [&](int& error) { return try_to_read(path, most_bytes, error); });
}

std::string read_small_file(const std::string& path, std::uintmax_t most_bytes, const std::string& fix) {
  if (auto bytes = find_small_file(path, most_bytes)) return *std::move(bytes);
  throw ConfigError({failure(path, ENOENT), "", fix});
}

std::vector<fs::path> cgroup_folders(const fs::path& v1_controller) {
  const fs::path root = "/sys/fs/cgroup";
  const std::string group = first_line("/proc/self/cgroup");
  std::vector<fs::path> folders;
  for (fs::path path = group.starts_with("0::/") ? group.substr(4) : ""; !path.empty(); path = path.parent_path())
    folders.push_back(root / path);
  folders.push_back(root);
  folders.push_back(root / v1_controller);
  return folders;
}

}  // namespace braid
