// A file that appears under its name complete or not at all: written to a temporary file, synced to disk, then renamed.
#pragma once

#include <sys/types.h>
#include "base/socket.h"

namespace braid {

class AtomicFile {
 public:
  explicit AtomicFile(std::string path, mode_t mode = 0666);  // minus the umask
  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();  // if not committed, leaves no file behind

  void write_at(std::int64_t offset, std::span<const std::byte> data);
  void commit();

 private:
  std::string path_, temporary_path_;
  Fd fd_;
};

inline constexpr std::size_t kMaxFileName = 255;

// Whether a name from a file refers to another file in the same folder, and to nothing else.
constexpr bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileName && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

// The target of `.NAME.PID.tmp` left by a process that is gone on this machine; empty for other names.
std::string abandoned_target(const std::string& temporary);

void write_file(const std::string& path, std::string_view text, mode_t mode = 0666);

// Syncs a folder's entries to disk, as commit() does with contents.
void sync_folder(const std::string& path);

}  // namespace braid
