#include "samples/bad_samples.h"

#include "base/error.h"
#include "base/strings.h"
#include "shards/sha1.h"

namespace braid {

SampleId id_of_sample(const Shard& shard, std::int64_t index) {
  SampleId id = 0;
  const auto digest = sha1(fmt::format("{}\n{}", shard.path, index));
  for (std::size_t i = 0; i < sizeof(id); ++i) id = id << 8 | digest[i];
  return id >> 11;
}

void BadSamples::add(const Shard& shard, std::int64_t index, const std::string& name, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  const bool is_new = damaged_.insert(id_of_sample(shard, index)).second;
  const std::string what =
      fmt::format("sample {} of shard {} is skipped: {}", name, in_quotes(shard.name), reason);
  if (std::ssize(damaged_) > limit_)
    throw DataError(fmt::format(
        "more than data.max_bad_samples={} samples are damaged: {}; repair the data set ('braid data inspect "
        "--count all --decode' lists its damaged samples), or allow more",
        limit_, what));
  if (is_new && say_) say_(fmt::format("{} ({} skipped)", what, damaged_.size()));
}

std::set<SampleId> BadSamples::damaged() const {
  const std::lock_guard lock(mutex_);
  return damaged_;
}

std::int64_t BadSamples::count() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(damaged_);
}

}  // namespace braid
