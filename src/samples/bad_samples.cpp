#include "samples/bad_samples.h"

#include "base/error.h"
#include "base/strings.h"
#include "shards/sha1.h"

namespace braid {

SampleId id_of_sample(const Shard& shard, const std::string& key) {
  SampleId id = 0;
  const auto digest = sha1(fmt::format("{}\n{}", shard.path, key));
  for (std::size_t i = 0; i < sizeof(id); ++i) id = id << 8 | digest[i];
  return id >> 11;
}

void BadSamples::add(const Shard& shard, const std::string& key, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!damaged_.insert(id_of_sample(shard, key)).second) return;
  const std::string what =
      fmt::format("sample {} of shard {} is skipped: {}", in_quotes(key), in_quotes(shard.name), reason);
  if (std::ssize(damaged_) > limit_)
    throw DataError(fmt::format(
        "more than data.max_bad_samples={} samples are damaged: {}; repair the data set ('braid data inspect "
        "--count all --decode' lists its damaged samples), or allow more",
        limit_, what));
  if (say_) say_(fmt::format("{} ({} skipped)", what, damaged_.size()));
}

std::set<SampleId> BadSamples::damaged() const {
  const std::lock_guard lock(mutex_);
  return damaged_;
}

}  // namespace braid
