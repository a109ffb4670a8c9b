// Small questions about files and paths.
#pragma once

#include <filesystem>
#include <string>

namespace braid {

std::string first_line(const std::filesystem::path& path);  // empty when it cannot be read

// The path itself, or the nearest folder above it that is there.
std::filesystem::path nearest_existing(std::filesystem::path path);

// A path under which this process and those it starts find `text` again, which was read from `path`: that itself where
// it is a file. A pipe can be read only once; its text is kept in memory.
std::string reopenable(const std::string& path, const std::string& text);

// Whether a path names what only this process has: a pipe, or one of its own descriptors (/dev/stdin, /dev/fd/63).
bool is_own_descriptor(const std::string& path);

std::string without_end_slash(std::string path);

}  // namespace braid
