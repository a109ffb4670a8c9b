// Small questions about files and paths.
#pragma once

#include <filesystem>
#include <string>

namespace braid {

std::string first_line(const std::filesystem::path& path);  // empty when it cannot be read

// The path itself, or the nearest folder above it that exists.
std::filesystem::path nearest_existing(std::filesystem::path path);

// A path under which this process and its children can read `text`, which came from `path`, again: `path` itself if it
// is a regular file. A pipe can be read only once, so its text is kept in memory.
std::string reopenable(const std::string& path, const std::string& text);

// Whether only this process can open the path: a pipe, or one of its own descriptors (/dev/stdin, /dev/fd/63).
bool is_own_descriptor(const std::string& path);

std::string without_end_slash(std::string path);

}  // namespace braid
