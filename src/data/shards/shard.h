// A shard with its index, for random access: a tar file of samples, or a JSONL file with one sample per line.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/shards/input_file.h"
#include "data/shards/sample_index.h"
#include "data/shards/tar.h"

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
  std::uint64_t offset = 0;  // in the shard
};

struct Sample {
  std::string key{}, shard{};
  std::vector<SamplePart> parts{};             // with different names
  std::vector<std::string> replaced{};         // names of parts that a later one of the same name replaces
  std::shared_ptr<const std::string> bytes{};  // holds the bytes of all parts

  const SamplePart* find(std::string_view part) const;
  // Of two parts with the same name the later one counts, in the place of the first, as in Energon's dict.
  void add(SamplePart part);
  std::size_t stored_bytes() const;  // of all parts
};

// A wrong index may say any size, and a sample is read as a whole.
inline constexpr std::uint64_t kMostSampleBytes = 1 << 30;

class OpenShard {
 public:
  // ReadError when the file or its index cannot be read, or the index has another count than `shard`.
  explicit OpenShard(const Shard& shard);

  void check_size() const;  // ReadError if the file ends before its last sample

  Sample read(std::int64_t index) const;
  // Reads the bytes of a part again.
  std::string read_bytes(std::uint64_t offset, std::size_t size) const { return file_.read(offset, size); }
  // Without looking at the sample's other members.
  std::string key(std::int64_t index) const;
  // Why the end of the shard may have been lost; empty: nothing suggests it.
  std::string end_remark() const;
  // The size, and the first and last bytes of the samples: cheap to read, and different in almost any other shard.
  std::string contents_hash() const;

 private:
  bool leads_to(std::int64_t index) const;
  ByteRange range(std::int64_t index) const;
  Sample read_tar(std::int64_t index, const ByteRange& range, const TarBytes& bytes, bool only_key) const;

  Shard shard_;
  InputFile file_;
  SampleIndex index_;
};

// The samples with these keys, by index; keys that the shard does not have are left out.
std::map<std::int64_t, std::string> samples_with_keys(const Shard& shard, const std::set<std::string>& keys);

}  // namespace braid
