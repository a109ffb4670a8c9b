// A shard with its index, mapped for random access: a tar file of samples, or a JSONL file with one sample per line.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shards/mapped_file.h"
#include "shards/sample_index.h"

namespace braid {

struct Shard {
  std::string name;  // relative to its data set's folder; of a JSONL file, its file name
  std::string path;
  std::int64_t samples = 0;  // as .info.json counts them

  bool is_jsonl() const { return path.ends_with(".jsonl"); }
};

struct SamplePart {
  std::string name;  // "jpg", "left.png"; of a JSONL line, "json"
  std::string_view bytes;
};

struct Sample {
  std::string key{}, shard{};
  std::vector<SamplePart> parts{};
  std::shared_ptr<const void> file{};  // keeps the parts' bytes mapped

  const SamplePart* find(std::string_view part) const;
  std::size_t stored_bytes() const;  // of all parts
};

class OpenShard : public std::enable_shared_from_this<OpenShard> {
 public:
  // DataError when the file or its index is missing or damaged, or the index has another count than `shard`.
  static std::shared_ptr<const OpenShard> open(const Shard& shard);

  Sample read(std::int64_t index) const;
  // Without looking at the sample's other members.
  std::string key(std::int64_t index) const;
  // Why the end of the shard may have been lost; empty: nothing suggests it.
  std::string end_remark() const;

 private:
  explicit OpenShard(const Shard& shard);
  Sample read_tar(std::int64_t index, bool only_key) const;

  Shard shard_;
  MappedFile file_;
  SampleIndex index_;
};

// The indices of samples with these keys, ascending; keys that the shard does not have are left out.
std::vector<std::int64_t> samples_with_keys(const Shard& shard, const std::set<std::string>& keys);

}  // namespace braid
