// The samples of a tar file, found by walking through its headers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace braid {

struct ScannedPart {
  std::string name;
  std::uint64_t offset = 0, size = 0;  // of its content
};

struct ScannedSample {
  std::string key;
  std::uint64_t begin = 0, end = 0;  // in the file, headers included
  std::vector<ScannedPart> parts{};
};

// Calls `on_sample` for each sample, in order. DataError on damage, and for a shard without samples. Returns why the
// shard may have lost samples although it can be read; empty: nothing suggests it.
std::string scan_shard(const std::string& path, const std::function<void(const ScannedSample&)>& on_sample);

// Offsets for the index of a JSONL file. DataError when a line is not a JSON object.
std::vector<std::uint64_t> scan_lines(const std::string& path);

}  // namespace braid
