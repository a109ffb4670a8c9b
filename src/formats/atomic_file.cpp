#include "formats/atomic_file.h"
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include "base/strings.h"

namespace braid {

AtomicFile::AtomicFile(std::string path, mode_t mode) : path_(std::move(path)) {
  const std::filesystem::path target(path_);
  std::error_code ignored;
  if (const auto status = std::filesystem::status(target, ignored);
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw ConfigError({fmt::format("cannot write '{}': it exists and is not a regular file", path_), "",
                       "give the name of a new file"});
  temporary_path_ = target.parent_path() / fmt::format(".{}.{}.tmp", target.filename().string(), ::getpid());
  fd_ = Fd(::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd_) throw_errno(fmt::format("cannot create '{}'", path_));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_path_(std::exchange(other.temporary_path_, {})),
      fd_(std::move(other.fd_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), data.data(), data.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(fmt::format("cannot write '{}'", path_));
    data = data.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0 || ::close(fd_.release()) != 0) throw_errno(fmt::format("cannot write '{}'", path_));
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) throw_errno(fmt::format("cannot rename to '{}'", path_));
  temporary_path_.clear();
}

std::string abandoned_target(const std::string& temporary) {
  constexpr std::string_view kEnd = ".tmp";
  const std::size_t dot = temporary.rfind('.', temporary.size() - kEnd.size() - 1);
  if (!temporary.starts_with('.') || !temporary.ends_with(kEnd) || dot == temporary.npos || dot < 2) return "";
  const std::string digits = temporary.substr(dot + 1, temporary.size() - kEnd.size() - dot - 1);
  const auto pid = parse_int(digits);
  if (!pid || *pid < 1 || digits.front() == '0' || digits.size() > 9) return "";
  return ::kill(*pid, 0) != 0 && errno == ESRCH ? temporary.substr(1, dot - 1) : "";
}

void write_file(const std::string& path, std::string_view text, mode_t mode) {
  AtomicFile file(path, mode);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

void sync_folder(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno(fmt::format("cannot open '{}'", path));
  if (::fsync(fd.get()) != 0) throw_errno(fmt::format("cannot write '{}'", path));
}

}  // namespace braid
