// The names of files in a checkpoint's folder.
#pragma once

#include <cstddef>
#include <string_view>

namespace braid {

inline constexpr const char* kIndexFile = ".metadata";
inline constexpr const char* kFormatFile = "metadata.json";
inline constexpr const char* kCommonFile = "common.pt";
inline constexpr const char* kChecksumFile = "checksums.json";

inline constexpr std::size_t kMaxFileName = 255;

// Whether a name that a file gives is that of another file beside it, and leads nowhere else.
constexpr bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileName && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace braid
