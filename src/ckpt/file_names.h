// The names of files in a checkpoint's folder, and size limits of those that are read whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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

}  // namespace braid
