#include "shards/shard.h"

#include "base/error.h"
#include "base/strings.h"
#include "shards/sample_name.h"
#include "shards/tar.h"

namespace braid {

const SamplePart* Sample::find(std::string_view part) const {
  for (const SamplePart& candidate : parts)
    if (candidate.name == part) return &candidate;
  return nullptr;
}

std::size_t Sample::stored_bytes() const {
  std::size_t bytes = 0;
  for (const SamplePart& part : parts) bytes += part.bytes.size();
  return bytes;
}

OpenShard::OpenShard(const Shard& shard) : shard_(shard), file_(shard.path), index_(index_path(shard.path)) {
  if (index_.samples() != shard.samples)
    throw DataError(fmt::format("'{}' has {}, but .info.json counts {}: prepare the data set again",
                                index_path(shard.path), counted(index_.samples(), "sample"), shard.samples));
}

std::shared_ptr<const OpenShard> OpenShard::open(const Shard& shard) {
  return std::shared_ptr<const OpenShard>(new OpenShard(shard));
}

Sample OpenShard::read_tar(std::int64_t index, bool only_key) const {
  const ByteRange range = index_.range(index, file_.bytes().size());
  if (range.end % kTarBlock != 0 && range.end != file_.bytes().size())
    throw DataError(fmt::format(
        "'{}' does not fit its index: sample {} is said to end at byte {}, within a block; write the index again with "
        "`braid data prepare`",
        shard_.path, index, range.end));
  Sample sample{.shard = shard_.name};
  bool has_key = false;
  for (TarReader tar(file_.bytes().substr(0, range.end), shard_.path, range.begin); tar.offset() < range.end;) {
    const auto member = tar.next();
    if (!member) break;
    const auto name = split_sample_name(member->name);
    if (!member->is_regular || !name) continue;
    if (has_key && name->key != sample.key)
      throw DataError(
          fmt::format("'{}' does not fit its index: sample {} at byte {} has the keys {} and {}; write the "
                      "index again with `braid data prepare`",
                      shard_.path, index, range.begin, in_quotes(sample.key), in_quotes(name->key)));
    sample.key = name->key;
    has_key = true;
    if (only_key) return sample;
    sample.parts.push_back(
        {std::string(name->part), file_.bytes().substr(member->content_offset, member->content_size)});
  }
  if (!has_key)
    throw DataError(
        fmt::format("'{}' has no sample at byte {}, where its index says sample {} is; write the index "
                    "again with `braid data prepare`",
                    shard_.path, range.begin, index));
  return sample;
}

Sample OpenShard::read(std::int64_t index) const {
  Sample sample;
  if (shard_.is_jsonl()) {
    const ByteRange range = index_.range(index, file_.bytes().size());
    sample = {.key = std::to_string(index),
              .shard = shard_.name,
              .parts = {{"json", file_.bytes().substr(range.begin, range.end - range.begin)}}};
  } else {
    sample = read_tar(index, /*only_key=*/false);
  }
  sample.file = shared_from_this();
  return sample;
}

std::string OpenShard::key(std::int64_t index) const {
  return shard_.is_jsonl() ? std::to_string(index) : read_tar(index, /*only_key=*/true).key;
}

std::string OpenShard::end_remark() const {
  const std::string_view bytes = file_.bytes();
  const std::uint64_t end = index_.end();
  if (end > bytes.size())
    return fmt::format("'{}' has {} bytes, but its index covers {}: it has been cut", shard_.path, bytes.size(), end);
  if (shard_.is_jsonl()) return "";
  // An index need not cover members that belong to no sample.
  TarReader tar(bytes, shard_.path, end);
  try {
    while (tar.next()) {
    }
  } catch (const DataError& e) {
    return e.what();
  }
  return braid::end_remark(bytes, tar.offset(), shard_.path);
}

std::vector<std::int64_t> samples_with_keys(const Shard& shard, const std::set<std::string>& keys) {
  const auto open = OpenShard::open(shard);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < shard.samples; ++i)
    if (keys.contains(open->key(i))) indices.push_back(i);
  return indices;
}

}  // namespace braid
