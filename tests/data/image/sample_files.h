// Small pictures of every format, written by Pillow; the fuzzers start from them too.
#pragma once

#include <gtest/gtest.h>

namespace braid::testing {

using FileBytes = std::vector<std::uint8_t>;

inline FileBytes sample_file(const std::string& name) {
  const auto path = std::filesystem::path(BRAID_SOURCE_DIR) / "tests/fuzz/corpus/image" / name;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::map<std::string, FileBytes> sample_files() {
  std::map<std::string, FileBytes> files;
  for (const char* name : {"alpha_turned.webp", "animated.webp", "baseline_turned.jpg", "cmyk.jpg", "deep_grey.png",
                           "grey.jpg", "interlaced_16.png", "lossless.webp", "lossy.webp", "palette_trns.png",
                           "progressive_restarts.jpg", "rgba_mirrored.png"})
    files[name] = sample_file(name);
  return files;
}

}  // namespace braid::testing
