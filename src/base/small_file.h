// Reads files that fit into memory as a whole: configurations, tokenizers. Every error has the file's name and the
// system's reason.
//
// A read that fails with a system error (EIO, ESTALE, EMFILE …) is repeated after a pause: network file systems return
// such errors while a server restarts.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

using ReadPauses = std::vector<std::chrono::milliseconds>;

// The pauses between attempts to read a file. Their sum is far below the time in which a rank must make progress.
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

}  // namespace braid
