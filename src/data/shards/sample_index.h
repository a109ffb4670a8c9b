// The index next to a shard or JSONL file: where each sample begins, and at the end where the last one ends. It is an
// array of little-endian 64-bit offsets without a header: `a.tar` has `a.tar.idx`, `a.jsonl` has `a.jsonl.idx`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/shards/input_file.h"

namespace braid {

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

class SampleIndex {
 public:
  explicit SampleIndex(const std::string& path);  // ReadError when its size is not that of an index

  std::int64_t samples() const;
  std::uint64_t end() const;                   // of the last sample
  ByteRange range(std::int64_t sample) const;  // of its bytes. DataError unless it ends after it begins
  // For a range that the shard does not have: says `why`, and how to write the index again.
  DataError misfit(const std::string& why) const;

 private:
  std::vector<std::uint64_t> entries(std::int64_t first, std::size_t count) const;

  InputFile file_;
};

std::string index_path(const std::string& data_path);
// `offsets`: one per sample, and the end of the last. The file appears complete or not at all.
void write_sample_index(const std::string& path, const std::vector<std::uint64_t>& offsets);

}  // namespace braid
