// Small questions about files and paths, and reading files that fit into memory as a whole.
#pragma once

namespace braid {

namespace fs = std::filesystem;

// Whether anything, a folder or a regular file has this name; false if that cannot be looked up.
inline fs::file_status status_of(const fs::path& path) {
  std::error_code ignored;
  return fs::status(path, ignored);
}
inline bool is_there(const fs::path& path) { return exists(status_of(path)); }
inline bool is_folder(const fs::path& path) { return is_directory(status_of(path)); }
inline bool is_file(const fs::path& path) { return is_regular_file(status_of(path)); }

std::string first_line(const fs::path& path);  // empty when it cannot be read

// The path itself, or the nearest folder above it that exists.
fs::path nearest_existing(fs::path path);

// A path under which this process and its children can read `text`, which came from `path`, again: `path` itself if it
// is a regular file. A pipe can be read only once, so its text is kept in memory.
std::string reopenable(const std::string& path, const std::string& text);

// Whether only this process can open the path: a pipe, or one of its own descriptors (/dev/stdin, /dev/fd/63).
bool is_own_descriptor(const std::string& path);

std::string without_end_slash(std::string path);

// Files that fit into memory. A read that fails with a system error (EIO, ESTALE, EMFILE …) is repeated after a pause:
// network file systems return such errors while a server restarts. The sum of the usual pauses is far below the time in
// which a rank must make progress.
using ReadPauses = std::vector<std::chrono::milliseconds>;
ReadPauses usual_read_pauses();

// Whether repeating open() or stat() cannot help: the file is missing, or access is denied.
bool is_lasting_error(int error);

enum class FileKind { None, Folder, Other };
// None if nothing has this name. ConfigError if access is denied; DataError if the system still fails after the last
// pause.
FileKind kind_of_file(const std::string& path, const ReadPauses& pauses = usual_read_pauses());

// Nothing if the file does not exist. ConfigError if it may not be read, is not a regular file, or has more bytes;
// DataError if the system still fails after the last pause.
std::optional<std::string> find_small_file(const std::string& path, std::uintmax_t most_bytes,
                                           const ReadPauses& pauses = usual_read_pauses());
// The same, but ConfigError, with the fix, if the file does not exist.
std::string read_small_file(const std::string& path, std::uintmax_t most_bytes, const std::string& fix);

// The folders with the limits of this process's cgroup and its ancestors, that of the process first, then that of a
// controller of cgroup v1.
std::vector<fs::path> cgroup_folders(const fs::path& v1_controller);

}  // namespace braid
