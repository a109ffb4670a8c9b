// The names of files in a checkpoint's folder and of the folders of iterations, and size limits of those that are read
// whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

inline constexpr const char* kIndexFile = ".metadata";
inline constexpr const char* kFormatFile = "metadata.json";
inline constexpr const char* kCommonFile = "common.pt";
inline constexpr const char* kChecksumFile = "checksums.json";

inline constexpr std::size_t kMaxFileName = 255;

// Far above what any checkpoint needs: a larger file is damaged or hostile, and is not loaded into memory.
inline constexpr std::int64_t kMaxSmallFile = 1 << 20;  // the tracker, metadata.json
inline constexpr std::int64_t kMaxCommonFile = 256 << 20;
inline constexpr std::int64_t kMaxIndexFile = 512 << 20;  // and checksums.json: enough for 64 TiB of checkpoint

constexpr std::int64_t most_bytes_of(std::string_view name) {
  return name == kFormatFile ? kMaxSmallFile : name == kCommonFile ? kMaxCommonFile : kMaxIndexFile;
}

// Whether a name from a file refers to another file in the same folder, and to nothing else.
constexpr bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileName && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

// The iterations in a folder of checkpoints, by the names of their folders.
std::string iteration_folder(const std::string& root, std::int64_t iteration);
std::optional<std::int64_t> iteration_of(const std::string& name);  // of "iter_0000100", as iteration_folder() names it
std::string partial_folder(const std::string& root, std::int64_t iteration);

// Ascending. Incomplete iterations lack an index.
enum class Complete { Yes, OrNot };
std::vector<std::int64_t> iterations_in(const std::string& root, Complete complete = Complete::Yes);

}  // namespace braid
