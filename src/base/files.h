// Small questions about files and paths.
#pragma once

#include <filesystem>
#include <string>

namespace braid {

std::string first_line(const std::filesystem::path& path);  // empty when it cannot be read

// The path itself, or the nearest folder above it that is there.
std::filesystem::path nearest_existing(std::filesystem::path path);

std::string without_end_slash(std::string path);

}  // namespace braid
