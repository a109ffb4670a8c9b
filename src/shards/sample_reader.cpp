#include "shards/sample_reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

namespace braid {

SampleReader::SampleReader(std::shared_ptr<const Blend> blend, std::size_t max_open_shards)
    : blend_(std::move(blend)), max_open_shards_(std::max<std::size_t>(max_open_shards, 1)) {}

std::shared_ptr<const OpenShard> SampleReader::open(const SampleRef& ref) {
  const Key key{ref.leaf, ref.shard};
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second);
      return found->second->shard;
    }
  }
  // Opening may wait for a slow disk; other threads read on. Two may open the same shard, and one is kept.
  auto shard = std::make_shared<const OpenShard>(shard_of(ref));
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(key); found != entries_.end()) return found->second->shard;
  recent_.push_front({key, shard});
  entries_[key] = recent_.begin();
  if (recent_.size() > max_open_shards_) {
    entries_.erase(recent_.back().key);
    recent_.pop_back();
  }
  return shard;
}

Sample SampleReader::read(const SampleRef& ref) {
  Sample sample = open(ref)->read(ref.index);
  if (const auto& filter = blend_->leaves[ref.leaf].spec.part_filter)
    std::erase_if(sample.parts, [&](const SamplePart& part) { return !contains(*filter, part.name); });
  return sample;
}

std::string SampleReader::key(const SampleRef& ref) { return open(ref)->key(ref.index); }

std::string SampleReader::name_of(const SampleRef& ref) {
  try {
    return in_quotes(key(ref));
  } catch (const DataError&) {
    return fmt::format("number {}", ref.index);
  }
}

}  // namespace braid
