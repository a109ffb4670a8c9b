// Tar files and data sets for tests.
#pragma once

#include "base/error.h"
#include "data/shards/prepare.h"

namespace braid::testing {

inline std::string with_checksum(std::string header) {
  header.replace(148, 8, "        ");
  int sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header;
}

inline std::string padded(std::string content) {
  content.resize((content.size() + 511) / 512 * 512);
  return content;
}

// One member: a ustar header and the content.
inline std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, fmt::format("{:011o}", content.size()));
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  return with_checksum(header) + padded(content);
}

inline std::string tar_end() { return std::string(1024, '\0'); }

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Shards NAME_0.tar, NAME_1.tar, ... with the samples NAME0, NAME1, ...
inline void write_shards(const std::filesystem::path& folder, const std::vector<int>& counts, const std::string& name) {
  int next = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::string tar;
    for (int n = 0; n < counts[i]; ++n, ++next) {
      tar += tar_member(fmt::format("{}{}.txt", name, next), fmt::format("text {}", next));
      tar += tar_member(fmt::format("{}{}.json", name, next), fmt::format("{{\"n\": [{}]}}", next));
    }
    write_text(folder / fmt::format("{}_{}.tar", name, i), tar + tar_end());
  }
}

inline std::string prepared(const std::filesystem::path& folder, const std::vector<int>& counts,
                            const std::string& name) {
  write_shards(folder, counts, name);
  prepare_data_set({.path = folder});
  return folder;
}

}  // namespace braid::testing
