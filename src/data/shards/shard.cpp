#include "data/shards/shard.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/sample_name.h"
#include "data/shards/sha1.h"

namespace braid {

const SamplePart* Sample::find(std::string_view part) const {
  for (const SamplePart& candidate : parts)
    if (candidate.name == part) return &candidate;
  return nullptr;
}

void Sample::add(SamplePart part) {
  const auto same =
      std::find_if(parts.begin(), parts.end(), [&](const SamplePart& other) { return other.name == part.name; });
  if (same == parts.end()) {
    parts.push_back(std::move(part));
  } else {
    replaced.push_back(part.name);
    *same = std::move(part);
  }
}

std::size_t Sample::stored_bytes() const {
  std::size_t bytes = 0;
  for (const SamplePart& part : parts) bytes += part.bytes.size();
  return bytes;
}

OpenShard::OpenShard(const Shard& shard) : shard_(shard), file_(shard.path), index_(index_path(shard.path)) {
  if (index_.samples() != shard.samples)
    throw ReadError(
        fmt::format("'{}' has {}, but .info.json counts {}: write it again with `braid data prepare --force`",
                    index_path(shard.path), counted(index_.samples(), "sample"), shard.samples));
}

void OpenShard::check_size() const {
  if (index_.end() > file_.size())
    throw ReadError(fmt::format("'{}' has {} bytes, but its index covers {}: it has been cut", shard_.path,
                                file_.size(), index_.end()));
}

ByteRange OpenShard::range(std::int64_t index) const {
  const ByteRange range = index_.range(index);
  if (range.end > file_.size())
    throw ReadError(
        fmt::format("'{}' ends at byte {}, before the end of its sample {} at byte {}: it has been cut, or is not the "
                    "file that was indexed",
                    shard_.path, file_.size(), index, range.end));
  if (range.end - range.begin > kMostSampleBytes)
    throw DataError(fmt::format(
        "'{}' says that sample {} has {} bytes; at most {} are allowed: make its parts smaller, or, if it is "
        "smaller, write the index again with `braid data prepare --force`",
        index_path(shard_.path), index, range.end - range.begin, kMostSampleBytes));
  return range;
}

// Whether members of the tar file end where the index says that this sample begins. Then the index fits the shard, and
// what is wrong there is damage.
bool OpenShard::leads_to(std::int64_t index) const {
  constexpr std::int64_t kMostDamaged = 64;  // samples in a row
  const TarBytes bytes = tar_bytes(file_);
  for (std::int64_t i = index - 1; i >= std::max<std::int64_t>(index - kMostDamaged, 0); --i) try {
      const ByteRange before = range(i);
      TarReader tar(bytes, shard_.path, before.begin);
      while (tar.offset() < before.end && tar.next()) {
      }
      if (tar.offset() >= before.end) return tar.offset() == before.end;
    } catch (const ReadError&) {
      throw;
    } catch (const DataError&) {  // it may be damaged too, so look at the sample before it
    }
  return false;
}

// `bytes`: at least those of the sample.
Sample OpenShard::read_tar(std::int64_t index, const ByteRange& range, const TarBytes& bytes, bool only_key) const {
  if (range.end % kTarBlock != 0 && range.end != file_.size())
    throw index_.misfit(fmt::format("sample {} is said to end at byte {}, within a block", index, range.end));
  Sample sample{.shard = shard_.name};
  bool has_key = false;
  TarReader tar(bytes, shard_.path, range.begin);
  const auto next = [&] {
    try {
      return tar.next();
    } catch (const TarEndError&) {
      throw index_.misfit(
          fmt::format("sample {} is said to end at byte {}, within a member of the tar file", index, range.end));
    } catch (const DataError&) {
      if (tar.offset() != range.begin || range.begin == 0 || leads_to(index)) throw;
      throw index_.misfit(
          fmt::format("sample {} is said to be at byte {}, but no valid header is there", index, range.begin));
    }
  };
  while (tar.offset() < range.end) {
    const auto member = next();
    if (!member) break;
    const auto name = split_sample_name(member->name);
    if (!member->is_regular || !name) continue;
    if (has_key && name->key != sample.key)
      throw index_.misfit(fmt::format("sample {} at byte {} has the keys {} and {}", index, range.begin,
                                      in_quotes(sample.key), in_quotes(name->key)));
    sample.key = name->key;
    has_key = true;
    if (only_key) return sample;
    sample.add(
        {std::string(name->part), bytes.read(member->content_offset, member->content_size), member->content_offset});
  }
  if (!has_key && tar.offset() == range.begin && (range.begin == 0 || leads_to(index)))
    throw DataError(fmt::format("'{}' is damaged at byte {}: there is no header", shard_.path, range.begin));
  if (!has_key)
    throw index_.misfit(fmt::format("sample {} is said to be at byte {}, but there is none", index, range.begin));
  return sample;
}

Sample OpenShard::read(std::int64_t index) const {
  const ByteRange range = this->range(index);
  const auto bytes = std::make_shared<const std::string>(file_.read(range.begin, range.end - range.begin));
  Sample sample =
      shard_.is_jsonl()
          ? Sample{.key = std::to_string(index), .shard = shard_.name, .parts = {{"json", *bytes, range.begin}}}
          : read_tar(index, range, tar_bytes(*bytes, range.begin), /*only_key=*/false);
  sample.bytes = bytes;
  return sample;
}

std::string OpenShard::key(std::int64_t index) const {
  if (shard_.is_jsonl()) return std::to_string(index);
  return read_tar(index, range(index), tar_bytes(file_), /*only_key=*/true).key;
}

std::string OpenShard::end_remark() const {
  try {
    check_size();
    if (shard_.is_jsonl()) return "";
    // An index need not cover members that belong to no sample.
    const TarBytes bytes = tar_bytes(file_);
    TarReader tar(bytes, shard_.path, index_.end());
    while (tar.next()) {
    }
    return braid::end_remark(bytes, tar.offset(), shard_.path);
  } catch (const SystemReadError&) {
    throw;
  } catch (const DataError& e) {
    return e.what();
  }
}

std::string OpenShard::contents_hash() const {
  constexpr std::uint64_t kLooked = 4096;  // bytes at each end
  const std::uint64_t end = index_.end(), size = std::min(end, kLooked);
  const auto digest =
      sha1(fmt::format("{} {}\n", file_.size(), end) + file_.read(0, size) + file_.read(end - size, size));
  return std::string(digest.begin(), digest.end());
}

std::map<std::int64_t, std::string> samples_with_keys(const Shard& shard, const std::set<std::string>& keys) {
  const OpenShard open(shard);
  std::map<std::int64_t, std::string> found;
  for (std::int64_t i = 0; i < shard.samples; ++i)
    if (std::string key = open.key(i); keys.contains(key)) found[i] = std::move(key);
  return found;
}

}  // namespace braid
